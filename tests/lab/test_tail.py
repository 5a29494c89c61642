"""Who follows a run sees each line once, and that a recovery has cut it."""

import os
import random
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from pslab.runs.folder import Run, RunError
from pslab.runs.log import Line
from pslab.runs.tail import RunTail
from tests.replay.simulated import simulate


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return simulate(tmp_path_factory.mktemp("run") / "run", "async", simulation={"evaluate": 10})


def in_place(file: Path, kept: int) -> None:
    os.truncate(file, kept)


def as_another_file(file: Path, kept: int) -> None:
    """As a copy that is put in its place leaves it."""
    other = file.with_suffix(".other")
    other.write_bytes(file.read_bytes()[:kept])
    other.replace(file)


@pytest.mark.parametrize("cut", [in_place, as_another_file])
@pytest.mark.parametrize("seed", range(8))
def test_entries_are_neither_lost_nor_doubled(
    run: Run, tmp_path: Path, seed: int, cut: Callable[[Path, int], None]
) -> None:
    """Of a log that grows in pieces, is cut anywhere, and grows beyond what it was or less, between two looks."""
    dice, file = random.Random(seed), tmp_path / "decisions.jsonl"
    lines = run.log.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0])
    tail, shown = RunTail(Run(tmp_path)), list[Line]()
    for _ in range(40):
        content = file.read_bytes()
        whole = content.count(b"\n")
        match dice.choice(("grow", "grow", "tear", "cut", "look", "look")):
            case "grow" | "tear" as how:
                kept = b"".join(content.splitlines(keepends=True)[:whole])
                more = b"".join(dice.sample(lines, dice.choice((1, 3, 40))))
                file.write_bytes(kept + more + (lines[0][:20] if how == "tear" else b""))
            case "cut":
                ends = [0, *(place + 1 for place, byte in enumerate(content) if byte == ord("\n"))]
                cut(file, dice.choice(ends))
            case _:
                shown = [] if tail.cut() else shown
                shown += tail.entries()
                assert [each.record for each in shown] == [each.record for each in Run(tmp_path).decisions()]
                assert tail.entries_read == len(shown)


def test_a_run_in_pieces_is_the_whole(run: Run, tmp_path: Path) -> None:
    for name in ("decisions.jsonl", "metrics.jsonl"):
        (tmp_path / name).touch()
    tail, entries, evaluations = RunTail(Run(tmp_path)), list[Line](), list[object]()
    for name in ("decisions.jsonl", "metrics.jsonl"):
        data = (run.path / name).read_bytes()
        with (tmp_path / name).open("wb") as file:
            for start in range(0, len(data), 999):
                file.write(data[start : start + 999])
                file.flush()
                assert not tail.cut()
                entries += tail.entries()
                evaluations += tail.evaluations()
    assert [each.fact for each in entries] == [each.fact for each in run.decisions()]
    assert evaluations == [metric for metric in run.metrics() if metric.kind == "eval"] != []


def test_a_line_that_cannot_be_read_is_named(run: Run, tmp_path: Path) -> None:
    """Once one that can be read follows on it, or the job has come to its end; a kill may leave it as the last one."""
    log = tmp_path / "decisions.jsonl"
    first = run.log.read_bytes().splitlines(keepends=True)[0]
    log.write_bytes(first + b"{}\n")
    tail = RunTail(Run(tmp_path))
    assert len(list(tail.entries())) == 1
    with log.open("ab") as file:
        file.write(first)
    with pytest.raises(RunError, match="decisions.jsonl:2: entry has no 'i'"):
        list(tail.entries())
    log.write_bytes(first + b"{}\n")
    shutil.copy(run.path / "summary.json", tmp_path)
    with pytest.raises(RunError, match="decisions.jsonl:2: entry has no 'i'"):
        list(RunTail(Run(tmp_path)).entries())


def test_who_stops_in_the_middle_of_a_look_goes_on_there(run: Run, tmp_path: Path) -> None:
    """As Ctrl-C stops a look: nothing that was not yet returned counts as seen."""
    lines = run.log.read_bytes().splitlines(keepends=True)
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(lines))
    tail = RunTail(Run(tmp_path))
    seen = [entry.record for entry in islice(tail.entries(), 5)]
    assert tail.entries_read == 5
    seen += [entry.record for entry in tail.entries()]
    assert seen == [entry.record for entry in run.decisions()] and not tail.cut()


def test_a_line_that_is_longer_than_a_piece_is_read_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pslab.runs.tail.PIECE", 7)
    (tmp_path / "decisions.jsonl").write_bytes(run.log.read_bytes())
    found = [entry.record for entry in RunTail(Run(tmp_path)).entries()]
    assert found == [entry.record for entry in run.decisions()]


def test_half_a_line_that_comes_between_two_reads_is_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was cut, and grows again, once it was known how much of it can be read."""
    lines = run.log.read_bytes().splitlines(keepends=True)
    (tmp_path / "decisions.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:9])
    tail = RunTail(Run(tmp_path))
    monkeypatch.setattr(tail.run, "readable", lambda name: 1 << 20)
    assert len(list(tail.entries())) == tail.entries_read == 3
