"""Whatever goes wrong, the log passes all checks and the job ends."""

from typing import Any

import pytest

from psserver.decisions import entries
from tests.simulator.lab import Outcome, experiment, simulate

POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("async", {}),
    ("bounded", {"aggregate": 2, "max_staleness": 1}),
    ("bounded", {"aggregate": 2, "max_staleness": 2, "on_stale": "block"}),
    ("ssp", {"slack": 2}),
)
every_policy = pytest.mark.parametrize(("policy", "knobs"), POLICIES, ids=str)


def troubled(policy: str, knobs: dict[str, Any], faults: dict[str, Any], **more: Any) -> Outcome:
    simulation = {"compute": "exponential(1)", "batches": 40, **more.pop("simulation", {})}
    run = simulate(
        experiment(policy, policy_knobs=knobs, faults=faults, simulation=simulation, workers=4, **more)
    )
    verdict = run.verdict()
    assert verdict.ok, verdict.violations
    assert run.summary["success"], run.summary["reason"]
    return run


@every_policy
@pytest.mark.parametrize("interrupt", [False, True])
def test_lost_and_doubled_messages(policy: str, knobs: dict[str, Any], interrupt: bool) -> None:
    run = troubled(
        policy,
        knobs,
        {"loss": 0.2, "duplicate": 0.2, "resend": 0.3},
        links={"latency": 0.05, "bandwidth": 1e4},
        simulation={"payload_bytes": 1000, "interrupt": interrupt},
    )
    for worker in run.summary["contributions"]:
        batches = [e.batch for e in run.entries if isinstance(e, entries.Commit) and e.worker == worker]
        # None counted twice, in order; and none lost, but for commits that a cancel met on their way.
        assert batches == sorted(set(batches)), worker
        assert len(batches) == 40 or run.cancelled, worker


@every_policy
def test_crashes_leaves_and_broken_connections(policy: str, knobs: dict[str, Any]) -> None:
    run = troubled(
        policy,
        knobs,
        {
            "crashes": [
                {"worker": 0, "at": 5.0, "restart": 1.0},
                {"worker": 1, "at": 9.0},
                {"worker": 2, "at": 12.0, "restart": 20.0, "silent": True},
            ],
            "leaves": [{"worker": 3, "at": 30.0}],
            "disconnects": [
                {"worker": 0, "at": 15.0, "seconds": 1.0},
                {"worker": 0, "at": 20.0, "seconds": 30.0},
            ],
            "loss": 0.05,
        },
        cluster={"worker_timeout": 6.0},
        links={"latency": 0.01},
    )
    kinds = {entry.kind for entry in run.entries}
    assert {"join", "leave", "lost", "back", "done", "stop"} <= kinds
    counts = run.summary["contributions"]
    # Restarted and reconnected ones go on where they were; the others are gone.
    assert counts["w0"]["committed"] == counts["w2"]["committed"] == 40
    assert counts["w1"]["committed"] < 40 and counts["w3"]["committed"] < 40


def test_nobody_waits_long_for_a_worker_that_is_gone() -> None:
    """A silent death is noticed by two keep-alives and forgiven for a third: worker_timeout in all."""
    run = troubled(
        "sync",
        {},
        {"crashes": [{"worker": 1, "at": 10.5, "silent": True}]},
        cluster={"worker_timeout": 6.0},
        simulation={"compute": "constant(1)"},
    )
    applied = [record.t for record in run.records if record.entry.kind == "apply"]
    pauses = [after - before for before, after in zip(applied, applied[1:], strict=False)]
    assert max(pauses) == pytest.approx(6.5, abs=0.01)


def test_a_worker_beyond_the_first_ones_joins_late() -> None:
    run = troubled("async", {}, {"joins": [{"worker": 4, "at": 10.0}, {"worker": 2, "at": 3.0}]})
    joins = {r.entry.worker: r.t for r in run.records if isinstance(r.entry, entries.Join)}
    assert joins["w4"] == 10.0 and joins["w2"] == 3.0
    # The start waits for the workers of the experiment, not for those beyond.
    assert next(r.t for r in run.records if r.entry.kind == "start") == 3.0
    assert run.summary["contributions"]["w4"]["committed"] == 40


def test_when_everybody_is_gone_the_job_is_abandoned() -> None:
    faults = {"crashes": [{"worker": n, "at": 5.0} for n in range(4)]}
    simulation = {"compute": "exponential(1)", "batches": 40}
    run = simulate(experiment("async", faults=faults, simulation=simulation, cluster={"idle_timeout": 60.0}))
    assert not run.summary["success"] and "no worker for 60 s" in run.summary["reason"]
    assert run.verdict().ok


def test_a_start_that_waits_for_a_worker_that_never_came_says_so() -> None:
    simulation = {"compute": "exponential(1)", "batches": 40}
    run = simulate(experiment("async", faults={"crashes": [{"worker": 2, "at": 0.0}]}, simulation=simulation))
    assert not run.summary["success"]
    assert run.summary["reason"] == "the start waits for 1 of 4 workers, and none will come"
    stopped = run.cluster.coordinator.state.stopped
    assert stopped is not None and stopped.cause == "abandoned"


def test_uneven_speeds_end_cleanly() -> None:
    for policy, knobs in POLICIES:
        troubled(policy, knobs, {}, simulation={"factors": {"0": 7.0, "3": 0.1}, "interrupt": True})


def test_time_can_end_a_run() -> None:
    run = troubled("async", {}, {}, simulation={"batches": 0, "seconds": 12.5, "compute": "constant(1)"})
    assert run.seconds == 12.5 and run.summary["reason"] == "12.5 s are over"
    assert run.versions == 4 * 12
