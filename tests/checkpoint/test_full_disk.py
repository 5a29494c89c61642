"""A disk that is full, then read-only: checkpoints fail and training goes on, what is there stays, and final weights
have a place whatever happens."""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pslab.export import Weights, write_weights
from pslab.runs.folder import RunError
from psserver.checkpoint import CheckpointError, Store
from psserver.weights_file import load
from pswire.exits import ExitCode
from psworker.errors import SessionError
from tests.checkpoint.test_copying import ADAM, SIZE, start, step
from tests.sentences import Recorder
from tests.service.serving import serving, wait_until

# Of each checkpoint: the weights and Adam's arrays, of 1.6 MB each.
FITS, FITS_THREE = "size=6m", "size=18m"


def disk_at(folder: Path, how: str) -> Iterator[Path]:
    """A file system of its own there, for as long as the fixture lasts."""
    folder.mkdir(parents=True)
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    made = mount("-t", "tmpfs", "-o", how, "none", str(folder))
    if made.returncode:
        pytest.skip(f"this machine mounts nothing: {made.stderr}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run folder whose checkpoints lie on a file system of their own, with room for one and a bit."""
    yield from disk_at(tmp_path / "run" / "checkpoints", FITS)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system for whole run folders, with room for three checkpoints and the weights."""
    yield from disk_at(tmp_path / "disk", FITS_THREE)


def fill(disk: Path) -> None:
    """Nothing more fits there."""
    with suppress(OSError), (disk / "ballast").open("ab", buffering=0) as ballast:
        for piece in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while ballast.write(bytes(piece)):
                    pass
    with (
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
        (disk / "more").open("wb", buffering=0) as more,
    ):
        more.write(b"x")


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
            return any("is NOT saved: " in m and words in m for m in caplog.messages)

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


def ended_on(disk: Path, spoil: Callable[[Path], None], *more: str) -> tuple[ExitCode | None, np.ndarray]:
    """A job with its run folder on that disk, which `spoil` spoils behind the first version; its exit code, and the
    version that it ended with."""
    out = disk / "run"
    with serving(out=out, overrides=("optimizer.name=sgd", "optimizer.learning_rate=0.5", *more)) as cluster:
        session = start(cluster)
        step(session, cluster.servers[0].probe)
        spoil(disk)
        # The log's last lines may still have room in a block that it has. A job that has ended grants nothing.
        with suppress(SessionError, AssertionError), session:
            for _ in range(50):
                step(session, cluster.servers[0].probe)
            session.done()
        code = cluster.servers[0].ended()
        values = cluster.servers[0].probe.shard.arena.values(cluster.servers[0].probe.shard.version)
        assert values is not None
        return code, values.copy()


def test_a_full_disk_has_room_for_the_final_weights(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has none, and the job ends for it: with a sentence, 11, and the weights in their place."""
    code, last = ended_on(disk, fill)
    assert code == ExitCode.STORAGE
    # Of the two files the one whose line is the first that does not fit.
    said = f"(decisions|metrics)\\.jsonl cannot be written: {os.strerror(errno.ENOSPC)}"
    assert re.search(said, caplog.text)
    assert load(disk / "run" / "weights.safetensors").arrays["w"].tobytes() == last.tobytes()
    assert not list((disk / "run").glob("*.part"))


def test_weights_that_the_run_folder_does_not_take_are_rescued(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rescue = tmp_path / "elsewhere"

    def read_only(disk: Path) -> None:
        # A disk is not made read-only under files that are open: another one lies over it.
        assert mount("-t", "tmpfs", "-o", "ro", "none", str(disk / "run")).returncode == 0

    try:
        code, last = ended_on(disk, read_only, f"run.rescue={rescue}")
    finally:
        mount("--make-private", str(disk))
        subprocess.run(["umount", "-l", str(disk / "run")], check=False)
    assert code == ExitCode.STORAGE
    (saved,) = rescue.iterdir()
    assert f"the weights are in {saved}" in caplog.text
    assert load(saved).arrays["w"].tobytes() == last.tobytes()


def test_older_checkpoints_give_way_before_the_newest_fails(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = disk / "run"
    folder = out / "checkpoints"
    with serving(out=out, overrides=ADAM) as cluster, start(cluster) as session:
        for version in range(1, 6):
            step(session, cluster.servers[0].probe)
            wait_until(lambda v=version: whole(folder)[-1:] == [v], f"version {version} to be saved")
            wait_until(lambda: len(whole(folder)) <= 2, "older checkpoints to make room")
    assert "older checkpoints made room for the next" in caplog.text
    assert "is NOT saved" not in caplog.text


def test_an_export_to_a_full_disk_is_a_sentence(disk: Path, sentences: Recorder) -> None:
    fill(disk)
    with sentences.raises(RunError):
        write_weights(disk / "model.safetensors", Weights({"w": np.ones(SIZE, np.float32)}, 1, ""), None)
    assert sorted(path.name for path in disk.iterdir()) == ["ballast", "more"]
