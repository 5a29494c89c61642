"""The times that simulated workers tell: those of the virtual clock, to the last digit."""

from typing import Any

import pytest

from pslab.check import members as times
from pslab.check.checker import check_log
from pslab.runs.log import read_log
from psserver.decisions import entries as facts
from tests.promises import promise
from tests.simulator.lab import Outcome, experiment, simulate


def commits(run: Outcome) -> list[facts.Commit]:
    return [entry.fact for entry in run.log() if isinstance(entry.fact, facts.Commit)]


def test_a_step_over_a_link() -> None:
    """Ask and answer 2 x 10 ms, 1 s down, 3 s of work and of injected delay."""
    run = simulate(
        experiment(
            "async",
            workers=1,
            run={"versions": 3},
            delays={0: "constant(1)"},
            simulation={"compute": "constant(2)", "payload_bytes": 100},
            links={"latency": 0.01, "bandwidth": 100.0},
        )
    )
    told = commits(run)
    assert len(told) == 3
    for commit in told:
        assert (commit.pull, commit.compute, commit.before) == (1.02, 3.0, None)


def test_where_links_cost_nothing_everything_is_computing() -> None:
    run = simulate(experiment("sync", run={"versions": 3}, simulation={"compute": "constant(2)"}))
    assert {(c.pull, c.compute, c.before) for c in commits(run)} == {(0.0, 2.0, None)}


def test_steps_before_the_grant_are_told_once() -> None:
    """EASGD takes its steps before it asks, except the first ones."""
    run = simulate(
        experiment(
            "easgd",
            workers=2,
            run={"versions": 8},
            policy_knobs={"steps": 3},
            simulation={"compute": "constant(2)"},
        )
    )
    told = commits(run)
    first = {worker: next(c for c in told if c.worker == worker) for worker in ("w0", "w1")}
    for commit in told:
        expected = (0.0, 6.0, None) if commit in first.values() else (0.0, 0.0, 6.0)
        assert (commit.pull, commit.compute, commit.before) == expected


@promise("Simulated times fit the log exactly.")
@pytest.mark.parametrize(
    ("policy", "sections"),
    [
        ("sync", {"policy_knobs": {"backup": 1}}),
        ("easgd", {}),
        ("bounded", {"faults": {"loss": 0.1, "duplicate": 0.1}}),
        ("local-sgd", {"faults": {"loss": 0.1}}),
    ],
    ids=["sync", "easgd", "bounded", "local-sgd"],
)
def test_they_fit_the_log_to_the_rounding(
    policy: str, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one clock: what two real ones may differ by is not needed."""
    monkeypatch.setattr(times, "DRIFT", 0.0)
    run = simulate(
        experiment(
            policy,
            run={"versions": 60},
            simulation={"compute": "exponential(1)", "payload_bytes": 1000},
            links={"latency": 0.05, "bandwidth": 5000.0},
            **sections,
        )
    )
    verdict = check_log(read_log(run.lines))
    assert verdict.ok, [str(violation) for violation in verdict.violations]
    assert all(c.pull is not None and c.compute is not None for c in commits(run))
