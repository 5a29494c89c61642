"""``ps-lab verify-policy``: what it says, its exit codes, and the golden trace that it saves."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pslab.cli import cli
from pslab.verify.trace_format import replay
from pswire.exits import ExitCode

FAULTY = "tests.verify.faulty_policies:DeadlocksOnLeave"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["verify-policy", "--quiet", *map(str, arguments)], standalone_mode=False)


def test_a_good_policy() -> None:
    result = run("ssp", "--set", "slack=0", "--workers", "2", "--schedules", "20")
    assert result.return_value == ExitCode.OK
    assert "ssp keeps the contract: 20 schedules with 2 workers" in result.output


def test_the_schedule_of_a_fault_is_a_golden_trace(tmp_path: Path) -> None:
    saved = tmp_path / "trace.txt"
    result = run(FAULTY, "--seed", "60")
    assert result.return_value == ExitCode.VIOLATIONS
    assert "breaks the contract, in schedule 9 (seed 68)" in result.output
    told = result.output[result.output.index("# policy") :]
    saved.write_text(told)
    assert told.startswith("# policy DeadlocksOnLeave deadlocked: w0 wait and no ticket is open\n")
    assert "w1 joins A\n" in told
    again, harness = replay(saved)
    assert again == told
    assert harness.stopped.startswith("policy: policy DeadlocksOnLeave deadlocked")
    assert harness.verdict().violations == ()


def test_as_json() -> None:
    result = run(FAULTY, "--seed", "60", "--json")
    facts = json.loads(result.output)
    assert facts["holds"] is False
    assert facts["fault"] == "policy DeadlocksOnLeave deadlocked: w0 wait and no ticket is open"
    assert (facts["schedule"], facts["seed"], facts["workers"], facts["fewest_workers"]) == (9, 68, 3, 2)
    assert facts["acts"][-1] in facts["trace"]
    assert json.loads(run("async", "--schedules", "5", "--json").output)["holds"] is True


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslab.commands.policies.LINE_INTERVAL", 0.0)
    result = CliRunner().invoke(cli, ["verify-policy", FAULTY], standalone_mode=False)
    assert "schedule 1 of 1000" in result.stderr
    assert "shrinking: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bounded", "--set", "max_stalenes=1"), 'did you mean "max_staleness"'),
        (("k-sync", "--set", "aggregate=9"), "<= workers (3), got 9"),
        (("ssp", "--set", "slack"), "expected section.key=value"),
        (("nowhere:Policy",), "cannot import 'nowhere'"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exception is not None and message in str(result.exception)
    assert getattr(result.exception, "code", None) == ExitCode.USAGE
