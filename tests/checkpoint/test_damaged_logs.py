"""A run's log of which a part cannot be read, or is not there: what goes on from it, and what is kept of it."""

import json
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs import log as e
from pslab.runs.folder import Run
from psserver import policies
from psserver.checkpoint import CheckpointError, FolderLock, Store, UnwritableError
from psserver.checkpoint.resumption import AUTO
from psserver.checkpoint.rewind import LogIndex
from psserver.coordinator import JobTerms
from psserver.service.saving import resume_point
from tests.checkpoint.test_simulated import cut_off, play
from tests.checkpoint.written import JOB, write
from tests.replay.command import ps_lab

# What a loss of power, a bad disk or an editor may leave behind the part that was on the disk.
RUBBISH = [
    bytes(4096),
    bytes(4096) + b'\n{"i":1}\n',
    b'{"i":1,"t":0.0}\n',
    b"\xff\xfe\n",
    b"[]\n",
    b"3\n",
    b'{"kind":"checkpoint","i":Infinity,"version":1}\n',
    b"[" * 100_000 + b"\n",
    b'{"kind":"apply","parts":[{"ticket":999999}]}\n',
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing happened to."""
    return play(tmp_path_factory.mktemp("run") / "whole", "sync")


@pytest.mark.parametrize("rubbish", RUBBISH, ids=lambda rubbish: repr(rubbish[:12]))
def test_a_log_counts_up_to_its_first_line_that_cannot_be_read(
    whole: Run, tmp_path: Path, rubbish: bytes
) -> None:
    folder = cut_off(whole, tmp_path / "again", 0.6)
    log = folder / "decisions.jsonl"
    log.write_bytes(log.read_bytes().rpartition(b"\n")[0] + b"\n" + rubbish)
    again = play(folder, "sync", "latest")
    assert [type(entry.fact) for entry in again.decisions()].count(e.Restore) == 1
    assert check_run(again).violations == ()
    assert again.summary.weights_sha256 == whole.summary.weights_sha256
    (aside,) = folder.glob("decisions.void-*.jsonl")
    assert aside.read_bytes().endswith(rubbish)


def test_checkpoints_behind_the_damage_are_passed_over(whole: Run, tmp_path: Path) -> None:
    """Which is said with the line, not with what is in it."""
    folder = cut_off(whole, tmp_path / "again", 0.9)
    index = LogIndex(folder)
    first, second, *_ = sorted(index.marks)
    lines = (folder / "decisions.jsonl").read_bytes().splitlines(keepends=True)
    lines[second - 1] = bytes(len(lines[second - 1]) - 1) + b"\n"
    (folder / "decisions.jsonl").write_bytes(b"".join(lines))
    listed = ps_lab("checkpoints", folder)
    assert listed.code == 9 and f"decisions.jsonl:{second}: is no entry of a decision log" in listed.out
    assert f"the log cannot be read up to entry {second}" in listed.out and "\\x00" not in listed.out
    again = play(folder, "sync", "latest")
    restored = [entry.fact for entry in again.decisions() if isinstance(entry.fact, e.Restore)]
    assert [fact.version for fact in restored] == [index.marks[first].version]
    assert again.summary.weights_sha256 == whole.summary.weights_sha256


def find(folder: Path, which: str = AUTO) -> resume_point.ResumePoint | None:
    return resume_point.find(folder, which, JobTerms("job", {}), policies.build("sync", {}, 1), None)


def test_a_damaged_log_without_a_checkpoint_is_put_aside_whole(tmp_path: Path) -> None:
    for text in (b"no log of ours\n", b'{"kind":"job","job":"1f0c"}\n' + bytes(9) + b"\n"):
        folder = tmp_path / str(len(text))
        folder.mkdir()
        (folder / "decisions.jsonl").write_bytes(text)
        found = find(folder)
        assert found is not None and found.checkpoint is None
        found.cut()
        assert (folder / "decisions.void-0.jsonl").read_bytes() == text
        assert (folder / "decisions.jsonl").read_bytes() == b""


def test_checkpoints_without_their_log_are_never_begun_over(tmp_path: Path) -> None:
    write(Store(tmp_path / "checkpoints"), 10)
    with pytest.raises(CheckpointError, match="holds checkpoints, but no decisions.jsonl"):
        find(tmp_path)
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    assert find(tmp_path / "other") is None


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(4))
def test_a_kill_between_any_two_steps_of_a_rewind_costs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Weights of the version from which the job goes on are kept under its number."""
    entries = [
        {"i": 0, "t": 0.0, "kind": "job", "job": JOB},
        {"i": 1, "t": 0.0, "kind": "checkpoint", "version": 7},
        {"i": 2, "t": 0.0, "kind": "stop", "version": 7},
    ]
    log = tmp_path / "decisions.jsonl"
    log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "summary.json").write_text('{"versions": 7}')
    (tmp_path / "weights.safetensors").write_bytes(b"weights")
    steps = 0

    def counted(self: Path, target: Path, real=Path.rename) -> Path:  # type: ignore[no-untyped-def]
        nonlocal steps
        steps += 1
        if steps == step:
            raise Killed
        renamed: Path = real(self, target)
        if steps == step - 1:
            raise Killed
        return renamed

    monkeypatch.setattr(Path, "rename", counted)
    index = LogIndex(tmp_path)
    if step:
        with pytest.raises(Killed):
            index.rewind(index.marks[1])
    monkeypatch.undo()
    again = LogIndex(tmp_path)
    again.rewind(again.marks[1])
    assert (tmp_path / "weights-7.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "summary-7.json").is_file()
    assert not (tmp_path / "weights.safetensors").exists() and not (tmp_path / "summary.json").exists()
    assert LogIndex(tmp_path).entries == 2


def test_a_log_that_cannot_be_cut_is_no_wrong_option(tmp_path: Path) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"i":0,"t":0,"kind":"checkpoint","version":0}\n{"kind":"x"}\n')
    (tmp_path / "decisions.void-1.jsonl").mkdir()
    index = LogIndex(tmp_path)
    with pytest.raises(UnwritableError, match="void-1.jsonl cannot be changed"):
        index.rewind(index.marks[0])
    assert LogIndex(tmp_path).entries == 2


def test_a_lock_is_held_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its process is for a message only."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("psserver.checkpoint.lock.os.pwrite", full)
        held = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match="another coordinator"):
        FolderLock(tmp_path)
    held.close()
    FolderLock(tmp_path).close()
