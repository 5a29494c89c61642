"""A coordinator that stood still while another one went on in its folder: it writes nothing more, and ends."""

from pathlib import Path

import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.checkpoint import CheckpointError, Store, fence
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.fence import LOCK
from psserver.options import Options
from psserver.service.job.log_file import Fence, LogError, TakenOverError
from psserver.service.job.run_log import RunLog
from psserver.service.life.coordinating import lock_folder
from psserver.settings import resolve
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.sentences import Recorder
from tests.service.peer import Peer
from tests.service.serving import serving, wait_until

JOB = "0a1b2c3d4e5f6071"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "checkpoints")
    fence.begin(found, JOB)
    return found


def test_lines_of_before_are_not_written(tmp_path: Path, store: Store, sentences: Recorder) -> None:
    """Neither at a flush nor at the end; and what the other one has written stays."""
    log = RunLog(tmp_path, check=Fence(store.root / fence.GENERATION))
    log.metric({"kind": "first"})
    log.flush()
    log.metric({"kind": "late"})
    fence.begin_next(store, "", JOB)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as other:
        other.write('{"kind":"next"}\n')
    for write in (
        log.flush,
        log.flush,
        log.sync,
        lambda: log.write_summary({"a": 1}),
        lambda: log.write_weights({"w": np.ones(1, np.float32)}),
    ):
        with sentences.raises(TakenOverError):
            write()
    with pytest.raises(LogError):
        log.close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == '{"kind":"first"}\n{"kind":"next"}\n'
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "decisions.jsonl", "metrics.jsonl"}


def test_a_buffer_that_is_full_is_not_written_either(tmp_path: Path, store: Store) -> None:
    log = RunLog(tmp_path, check=Fence(store.root / fence.GENERATION))
    fence.begin_next(store, "", JOB)
    with pytest.raises(TakenOverError):
        log.metric({"kind": "x" * (1 << 16)})
    assert not (tmp_path / "metrics.jsonl").read_bytes()


def test_without_the_file_nobody_has_taken_over(tmp_path: Path, store: Store) -> None:
    """Somebody has removed checkpoints, to have room: training goes on."""
    log = RunLog(tmp_path, check=Fence(store.root / fence.GENERATION))
    (store.root / fence.GENERATION).unlink()
    log.metric({"kind": "first"})
    log.close()
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8") == '{"kind":"first"}\n'


def test_the_server_of_before_ends_and_the_log_is_the_next_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a disk whose locks do not hold: the file of the lock is another one."""
    out = tmp_path / "run"
    every = ("run.checkpoint_every=1 version",)
    with serving(out=out, overrides=every) as before, Peer(before, "w0") as stale:
        stale.step()
        stale.step()
        wait_until(lambda: len(Store(out / "checkpoints").names()) >= 2, "checkpoints")
        (out / "checkpoints" / LOCK).unlink()
        with serving(out=out, resume="latest", overrides=every) as now:
            # Who started it asks this job, in this generation, for its status.
            assert now.servers[0].events["ready"]["job"] == now.status().job
            with Peer(now, "w0") as peer:
                peer.step()
                # The server of before decides once more.
                stale.send(ready=pb.Ready())
                assert before.servers[0].ended() == ExitCode.REFUSED
                peer.step()
                peer.send(done=pb.Done())
                peer.receive("stop")
            assert now.servers[0].ended() == ExitCode.OK
    assert "another coordinator has begun a later generation in this folder" in caplog.text
    run = Run(out)
    assert run.summary.success and run.summary.versions >= 3
    assert check_run(run).violations == ()


def test_a_run_without_checkpoints_has_one_coordinator_too(tmp_path: Path) -> None:
    """With --resume auto a second one would begin anew, and cut the log of the first."""
    out = tmp_path / "run"
    with serving(out=out) as cluster:
        with Peer(cluster, "w0") as peer:
            peer.step()
            second = resolve(Options(ps_hosts="127.0.0.1:7070", task_index=0, out=out, resume="auto"), None)
            with pytest.raises(CheckpointError, match=r"another coordinator \(process \d+\) works in it"):
                lock_folder(second, RealDisk())
            peer.step()
            peer.send(done=pb.Done())
            peer.receive("stop")
        assert cluster.servers[0].ended() == ExitCode.OK
    assert check_run(Run(out)).violations == ()
