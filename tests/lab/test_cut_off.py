"""A run whose server was killed: read by every command up to the last whole line of its log."""

import json
import shutil
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.dashboard.runs import RunPage
from pslab.runs.folder import Run, RunError
from psserver.policies.builtin import BUILTIN
from pswire.exits import ExitCode
from tests.lab.logs import async_log, write_run
from tests.promises import promise
from tests.repetitions import repetitions
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate
from tests.sentences import Recorder


def killed(run: Path, at: int, folder: Path) -> Path:
    """A copy of the run as a `kill -9` of its server leaves it: no summary, no weights, `at` bytes of the log."""
    shutil.copytree(run, folder)
    for name in ("summary.json", "weights.safetensors"):
        (folder / name).unlink(missing_ok=True)
    for name, end in (("decisions.jsonl", at), ("metrics.jsonl", at // 7)):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:end])
    return folder


def cuts(run: Run) -> list[int]:
    """Behind the first line, at a third, at two thirds of the log (a soak: at more): within lines, nearly always."""
    size, first = run.log.stat().st_size, run.log.read_bytes().index(b"\n") + 1
    parts = repetitions(3, soak=12, fast=2)
    return [first, *(first + (size - first) * part // parts for part in range(1, parts))]


@promise("Every beginning of a log passes the check and replays.")
@pytest.mark.parametrize("policy", sorted(BUILTIN))
def test_every_beginning_of_a_log_passes_the_check_and_replays(tmp_path: Path, policy: str) -> None:
    servers = 1 if policy == "krum" else 2
    run = simulate(tmp_path / "run", policy, cluster={"servers": servers})
    for number, at in enumerate(cuts(run)):
        folder = killed(run.path, at, tmp_path / f"killed-{number}")
        verdict = check_run(Run(folder))
        assert verdict.violations == ()
        assert verdict.entries == run.log.read_bytes()[:at].count(b"\n")
        assert any("has no summary.json" in note for note in verdict.notes)
    # The last one has most to execute again.
    done = ps_lab("replay", folder, "--json")
    (found,) = done.lines
    assert done.code == 0 and found["first_difference"] is None and found["computed"] > 0
    assert found["version"] == Run(folder).summary.versions


def test_the_summary_of_a_killed_run_is_that_of_its_log(tmp_path: Path) -> None:
    """Of a whole log: what the server itself counted."""
    run = simulate(tmp_path / "run", "bounded", {"max_staleness": 1})
    said = run.summary
    (run.path / "summary.json").unlink()
    counted = Run(run.path).summary
    for field in ("job", "policy", "optimizer", "servers", "workers", "versions", "samples", "contributions"):
        assert getattr(counted, field) == getattr(said, field), field
    assert counted.histogram == said.histogram
    assert counted.wall_seconds == pytest.approx(said.wall_seconds, abs=1e-5)
    assert counted.metrics == pytest.approx(said.metrics)
    assert (counted.success, counted.weights_sha256) == (False, None)
    assert "cut off" in counted.reason


# What a kill or a loss of power leaves behind the last line that can be read.
ENDS = {
    "whole": b"",
    "torn": b'{"i":99,',
    "unreadable": bytes(4000) + b"\n",
    "both": b'[]\n{"i":1}\n' + bytes(70_000) + b'\n{"i"',
}


@pytest.mark.parametrize("end", ENDS)
def test_every_command_reads_a_killed_run_and_says_so_in_one_sentence(tmp_path: Path, end: str) -> None:
    run = simulate(tmp_path / "run", "async")
    text = run.log.read_bytes()
    at = text.index(b"\n", len(text) // 2) + 1
    folder = killed(run.path, at, tmp_path / "killed")
    entries, left = text[:at].count(b"\n"), ENDS[end]
    for name in ("decisions.jsonl", "metrics.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b"" if name == "decisions.jsonl" else b"\n")
            file.write(left)
    commands: list[list[object]] = [["compare"], ["replay"], ["export", "--trace", tmp_path / "trace.json"]]
    if end == "torn":
        commands += [
            ["compare", "--chart", f"training_loss={tmp_path / 'loss.png'}"],
            ["compare", "--training-loss", "0.5"],
            ["export", "--tensorboard", tmp_path / "events"],
        ]
    for command in commands:
        name, *options = command
        done = ps_lab(name, folder, *options)
        assert done.code == 0, done
        (note,) = done.err.splitlines() if name not in ("replay",) else done.err.splitlines()[:1]
        assert note.startswith(f"note: {folder}: has no summary.json: ")
        behind = f", without {len(left)} bytes behind it" if left else ""
        assert note.endswith(f"read up to the last entry that can be read{behind}")
    done = ps_lab("check", folder, "--json")
    assert done.code == 0, done
    assert RunPage(folder).entries == entries
    assert sum("has no summary.json" in note for note in done.lines[0]["notes"]) == 1
    assert "1 (1 unfinished)" in ps_lab("compare", folder).out


def test_a_torn_line_of_a_run_that_stopped_is_still_a_violation(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", async_log())
    log = folder / "decisions.jsonl"
    log.write_bytes(log.read_bytes()[:-5])
    assert ps_lab("check", folder).code == ExitCode.VIOLATIONS
    assert "cut off" in ps_lab("replay", folder).err


def test_a_changed_contribution_of_a_killed_run_is_found(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    folder = killed(run.path, run.log.stat().st_size * 2 // 3, tmp_path / "killed")
    log = folder / "decisions.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if '"kind":"commit"' in line and '"batch":2' in line)
    lines[place] = json.dumps(json.loads(lines[place]) | {"loss": 0.125}) + "\n"
    log.write_text("".join(lines))
    done = ps_lab("replay", folder)
    assert done.code == ExitCode.VIOLATIONS and "first difference: the loss of batch 2" in done.out


def test_a_run_that_was_killed_before_its_first_line_is_refused_in_a_sentence(
    tmp_path: Path, sentences: Recorder
) -> None:
    (tmp_path / "decisions.jsonl").touch()
    with pytest.raises(RunError) as refused:
        _ = Run(tmp_path).summary
    sentences.check(refused)
    done = ps_lab("compare", tmp_path)
    assert done.code == ExitCode.USAGE and "Traceback" not in done.err
