"""A run's log of which a part cannot be read, or is not there: what goes on from it, and what is kept of it."""

import json
import shutil
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver import policies
from psserver.checkpoint import CheckpointError, FolderLock, Store, UnwritableError
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.resumption import AUTO
from psserver.checkpoint.rewind import LogIndex
from psserver.coordinator import JobTerms
from psserver.decisions import entries as e
from psserver.service.store import resume_point
from tests.checkpoint.test_simulated import cut_off, play
from tests.checkpoint.written import JOB, write
from tests.replay.command import ps_lab
from tests.sentences import Recorder

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


def flip(folder: Path, name: str, line: int, place: int) -> None:
    """One bit of that line."""
    lines = (folder / name).read_bytes().splitlines(keepends=True)
    there = bytearray(lines[line])
    there[place] ^= 0x80
    lines[line] = bytes(there)
    (folder / name).write_bytes(b"".join(lines))


# In an entry, in its number, in the line's end, and in the line that names the job.
@pytest.mark.parametrize(("line", "place"), [(7, 20), (9, 6), (11, -1), (0, 3)])
def test_an_old_line_that_is_damaged_costs_its_proof_and_no_checkpoint(
    whole: Run, tmp_path: Path, line: int, place: int
) -> None:
    folder = cut_off(whole, tmp_path / "again", 0.9)
    newest = max(LogIndex(folder).marks)
    flip(folder, "decisions.jsonl", line, place)
    index = LogIndex(folder)
    assert index.hole == line and max(index.marks) == newest
    listed = ps_lab("checkpoints", folder)
    assert f"decisions.jsonl:{line + 1}: is no entry of a decision log" in listed.out
    assert "\\x" not in listed.out and listed.out.count("VOID") == 0
    again = play(folder, "sync", "latest")
    kept = (folder / "decisions.jsonl").read_bytes()
    assert kept.count(b'"kind":"restore"') == 1
    assert again.summary.weights_sha256 == whole.summary.weights_sha256
    found = check_run(again)
    assert any(each.line == line + 1 for each in found.violations)
    assert any("cannot be read" in note for note in found.notes)


def test_a_checkpoint_of_a_generation_that_the_log_cannot_name_any_more(whole: Run, tmp_path: Path) -> None:
    """Its name says that it is a later one than the last that can be read."""
    folder = cut_off(whole, tmp_path / "again", 0.5)
    play(folder, "sync", "latest")
    log = (folder / "decisions.jsonl").read_bytes().splitlines()
    line = next(number for number, text in enumerate(log) if b'"kind":"restore"' in text)
    job = json.loads(log[line])["job"]
    before = LogIndex(folder)
    newest = before.marks[max(before.marks)]
    flip(folder, "decisions.jsonl", line, 30)
    index = LogIndex(folder)
    assert index.lacks(newest.entry, job, newest.version) is None
    assert index.lacks(newest.entry, "0a1b2c3d", newest.version) is not None
    assert index.lacks(newest.entry, job, newest.version + 1) is not None


def test_an_old_line_of_the_metrics_that_is_damaged_costs_no_other(whole: Run, tmp_path: Path) -> None:
    folder = cut_off(whole, tmp_path / "again", 0.9)
    before = (folder / "metrics.jsonl").read_bytes().splitlines()
    flip(folder, "metrics.jsonl", 1, 3)
    play(folder, "sync", "latest")
    after = (folder / "metrics.jsonl").read_bytes().splitlines()
    assert after[2] == before[2] and len(after) >= len(before)


def find(folder: Path, which: str = AUTO) -> resume_point.ResumePoint | None:
    return resume_point.find(folder, which, JobTerms("job"), policies.build("sync", {}, 1), None, RealDisk())


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


def test_checkpoints_without_their_log_are_never_begun_over(tmp_path: Path, sentences: Recorder) -> None:
    write(Store(tmp_path / "checkpoints"), 10)
    with sentences.raises(CheckpointError):
        find(tmp_path)
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    assert find(tmp_path / "other") is None


def test_a_job_that_has_lost_its_checkpoints_does_not_begin_anew(tmp_path: Path, sentences: Recorder) -> None:
    """Whether the folder is gone, or only what was in it."""
    (tmp_path / "decisions.jsonl").write_text('{"i":0,"t":0,"kind":"checkpoint","version":0}\n')
    found = find(tmp_path)
    assert found is not None and found.checkpoint is None, "one that was never complete"
    (tmp_path / resume_point.SAVED).write_text("0000000000-1f0c\n")
    for gone in (False, True):
        if not gone:
            (tmp_path / "checkpoints").mkdir()
        with sentences.raises(CheckpointError):
            find(tmp_path)
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)


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


def test_a_log_that_cannot_be_cut_is_no_wrong_option(tmp_path: Path, sentences: Recorder) -> None:
    (tmp_path / "decisions.jsonl").write_text('{"i":0,"t":0,"kind":"checkpoint","version":0}\n{"kind":"x"}\n')
    (tmp_path / "decisions.void-1.jsonl").mkdir()
    index = LogIndex(tmp_path)
    with sentences.raises(UnwritableError):
        index.rewind(index.marks[0])
    assert LogIndex(tmp_path).entries == 2


def test_a_lock_is_held_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its process is for a message only."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("psserver.checkpoint.fence.os.pwrite", full)
        held = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match="another coordinator"):
        FolderLock(tmp_path)
    held.close()
    FolderLock(tmp_path).close()
