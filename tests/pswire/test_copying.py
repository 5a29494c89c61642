"""Copies on several threads: every element once, whatever the sizes, also in a process that was forked."""

import subprocess
import sys

import numpy as np
import pytest

from pswire.transport.copying import PIECE, SHARED, copy, copy_all

RANDOM = np.random.default_rng(3)


def numbers(count: int) -> np.ndarray:
    return RANDOM.normal(size=count).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, PIECE // 4, SHARED // 4 - 1, SHARED // 4, SHARED + 7])
def test_an_array_of_any_size(count: int) -> None:
    source = numbers(count)
    target = np.zeros(count + 2, np.float32)
    copy(target[1:-1], source)
    assert target[1:-1].tobytes() == source.tobytes()
    assert target[0] == target[-1] == 0


def test_several_arrays_of_several_sizes_one_behind_the_other() -> None:
    sources = [numbers(count) for count in (3, SHARED // 4, 0, PIECE // 4 + 1, 10)]
    target = np.zeros(sum(each.size for each in sources), np.float32)
    places = np.split(target, np.cumsum([each.size for each in sources])[:-1])
    copy_all(zip(places, sources, strict=True))
    assert target.tobytes() == np.concatenate(sources).tobytes()


@pytest.mark.parametrize("count", [4, SHARED])
def test_sizes_that_differ_are_refused_with_nothing_written(count: int) -> None:
    """Numpy would spread a single number over all."""
    target = np.zeros(count, np.float32)
    with pytest.raises(ValueError, match=f"expected {count} elements, got 1"):
        copy_all([(target[:2], np.ones(2, np.float32)), (target, np.ones(1, np.float32))])
    assert not target.any()


FORK = """
import os, warnings
import numpy as np
from pswire.transport.copying import SHARED, copy

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 dislikes a fork beside threads
source = np.arange(SHARED, dtype=np.float32)
copy(np.empty_like(source), source)
child = os.fork()
target = np.zeros_like(source)
copy(target, source)
if child == 0:
    os._exit(0 if target.tobytes() == source.tobytes() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_of_a_process_that_has_copied_copies_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
