"""Where the system gives a server too few threads, it says so and ends with 12: no library ends it with a signal."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from psserver.service.guard.machine import check_threads
from pswire.exits import ExitCode
from tests.patience import PATIENCE
from tests.sentences import Recorder

GROUPS = Path("/sys/fs/cgroup/pids")
# Python's own threads fit; gRPC's did not.
FEW = 12


@pytest.fixture
def few() -> Iterator[Path]:
    """A group of processes that may have so many threads."""
    group = GROUPS / f"few-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(FEW), encoding="ascii")
    except OSError as error:
        pytest.skip(f"no cgroup with a limit of processes can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.cluster
def test_a_server_says_what_it_lacks(few: Path) -> None:
    enter = f"import os; open({str(few / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    arguments = ["ps-server", "--ps-hosts", "127.0.0.1:0"]
    start = f"import sys; sys.argv = {arguments}; from psserver.__main__ import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", f"{enter}\n{start}"],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == ExitCode.RESOURCES, done.stderr
    # The clock of deadlines has a thread of its own.
    assert f"got {FEW - 1}: " in done.stderr and "the system gives no thread" in done.stderr, done.stderr
    assert "pids limit" in done.stderr and done.stdout == ""


def test_threads_that_were_tried_have_ended(monkeypatch: pytest.MonkeyPatch, sentences: Recorder) -> None:
    left, start = [5], threading.Thread.start

    def few_only(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    check_threads()
    monkeypatch.setattr(threading.Thread, "start", few_only)
    with pytest.raises(RuntimeError) as refused:
        check_threads()
    sentences.check(refused)
    assert not [thread for thread in threading.enumerate() if thread.name == "trial"]
