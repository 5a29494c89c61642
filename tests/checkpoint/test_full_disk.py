"""A disk that is full, then read-only, while checkpoints are written: training goes on, and what is there stays."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psserver.checkpoint import CheckpointError, Store
from tests.checkpoint.test_copying import ADAM, start, step
from tests.service.serving import serving, wait_until

# Of each checkpoint: the weights and Adam's arrays, of 1.6 MB each.
FITS, FITS_THREE = "size=6m", "size=18m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run folder whose checkpoints lie on a file system of their own, with room for one and a bit."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    made = mount("-t", "tmpfs", "-o", FITS, "none", str(folder))
    if made.returncode:
        pytest.skip(f"this machine mounts nothing: {made.stderr}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)


def whole(folder: Path) -> list[int]:
    """Versions of checkpoints of which every byte is right."""
    store, found = Store(folder), []
    for name in store.names():
        try:
            found.append(store.verify(name).version)
        except CheckpointError:
            continue
    return found


def test_a_full_disk_and_one_that_becomes_read_only(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_one = (*ADAM[:-1], "run.keep=1")
    out = small_disk.parent
    with serving(out=out, overrides=keep_one) as cluster, start(cluster) as session:
        probe = cluster.servers[0].probe

        def train(until: Callable[[], object], what: str) -> None:
            """One step after the other, each of which orders a checkpoint."""

            def stepped() -> object:
                step(session, probe)
                return until()

            wait_until(stepped, what)

        def told(words: str) -> bool:
            return any("is NOT saved, and training goes on" in m and words in m for m in caplog.messages)

        train(lambda: whole(small_disk), "the first checkpoint")
        (first,) = whole(small_disk)
        train(lambda: told("No space left on device"), "a full disk")
        assert whole(small_disk) == [first]
        assert mount("-o", f"remount,{FITS_THREE}", str(small_disk)).returncode == 0
        train(lambda: whole(small_disk) > [first], "one more, once there is room")
        # A disk is not made read-only under a file that is open (the lock): another one lies over it.
        assert mount("-t", "tmpfs", "-o", "ro", "none", str(small_disk)).returncode == 0
        train(lambda: told("Read-only file system"), "a disk that is read-only")
        before = probe.version
        step(session, probe)
        step(session, probe)
        assert probe.version > before
        subprocess.run(["umount", "-l", str(small_disk)], check=True)
        # What was ordered last may be completed only now, and take the place of the one before it.
        wait_until(lambda: whole(small_disk) > [first], "the last checkpoint that was whole")
