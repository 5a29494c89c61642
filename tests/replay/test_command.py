"""``ps-lab replay`` as a user sees it."""

from pathlib import Path
from typing import Any

import pytest

from pswire.exits import ExitCode
from tests.replay.command import Said, ps_lab
from tests.replay.simulated import Record, edit_log, simulate


def run_replay(*arguments: object) -> Said:
    return ps_lab("replay", *arguments)


def said(result: Said) -> dict[str, Any]:
    (line,) = result.lines
    return line


def failure(result: Said) -> str:
    assert result.code == ExitCode.USAGE, result
    return result.err


def test_an_equal_run(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    result = run_replay(run.path)
    assert result.code == 0
    assert f"equal bit for bit: {run.summary.weights_sha256}" in result.out
    assert said(run_replay(run.path, "--json"))["equal"] is True


def test_a_run_that_differs(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")

    def change(records: list[Record]) -> None:
        [r for r in records if r["kind"] == "apply"][5]["lr_scale"] = 0.5

    edit_log(run, change)
    result = run_replay(run.path)
    assert result.code == ExitCode.VIOLATIONS
    assert "first difference: the loss of batch" in result.out
    assert "the final weights differ" in result.out and "differs by at most" in result.out
    found = said(run_replay(run.path, "--json"))
    assert found["equal"] is False and found["first_difference"]["base"] >= 6


def test_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    (run.path / "decisions.jsonl").unlink()
    assert "decisions.jsonl: is missing" in failure(run_replay(run.path))


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no such run folder" in failure(run_replay(tmp_path / "nothing"))


@pytest.mark.parametrize("command", ["replay", "compare", "sweep"])
def test_help_explains_itself_and_lists_the_exit_codes(command: str) -> None:
    said = ps_lab(command, "--help")
    assert said.code == 0
    assert "Exit codes:" in said.out and f"ps-lab {command} " in said.out
