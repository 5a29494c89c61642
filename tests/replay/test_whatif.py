"""Another policy on a recorded schedule; the same policy is its oracle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pslab.replay.schedule import read_records
from pslab.replay.whatif import Alternative, what_if
from pslab.runs.folder import Run
from psserver.coordinator import Record
from psserver.policies import Decision, Event, Policy, PolicyError, Ready, Waiting
from tests.lab.logs import FakeLog, text
from tests.replay.simulated import simulate

CRASH = {"crashes": [{"worker": 1, "at": 6.0, "restart": 3.0}]}
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sync": ("sync", {}, {}),
    "backup": ("sync", {"backup": 1}, {}),
    "async": ("async", {}, {}),
    "drop": ("bounded", {"aggregate": 2, "max_staleness": 1}, {}),
    "block": ("bounded", {"max_staleness": 1, "on_stale": "block"}, {}),
    "ssp": ("ssp", {"slack": 2}, {}),
    "dssp": ("dssp", {}, {}),
    "crash": ("async", {}, {"faults": CRASH}),
    "deadline": ("deadline-sync", {"grace": 0.3}, {}),
    "quantile": ("deadline-sync", {"rule": "quantile", "quantile": 0.5, "factor": 1.0, "most": 3.0}, {}),
    "timeout": ("fedbuff-timeout", {"aggregate": 3, "timeout": 0.2}, {}),
    "dbw": ("dbw", {}, {}),
}


def as_json(steps: list[Record]) -> list[dict[str, Any]]:
    """Every decision and fact, up to the stop and without its reason."""
    found = []
    for step in steps:
        if step.entry.kind == "stop":
            return found
        found.append({"t": step.t, **step.entry.to_json()})
    return found


@pytest.mark.parametrize("name", SAME)
def test_the_same_policy_decides_the_same(tmp_path: Path, name: str) -> None:
    """One recorded schedule: the coordinator that receives it again writes an equal log, entry for entry."""
    policy, knobs, sections = SAME[name]
    steps = read_records(simulate(tmp_path / "run", policy, knobs, **sections))
    found = what_if(steps, policy, knobs)
    assert found.held == found.never == 0 and not found.failure
    # A connection that breaks and what the crash looks like from inside are no part of the schedule.
    recorded = [entry for entry in as_json(steps) if entry["kind"] not in ("lost", "back")]
    for ours, theirs in zip(as_json(found.steps), recorded, strict=True):
        assert ours == theirs


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [("sync", {}), ("ssp", {"slack": 1}), ("bounded", {"aggregate": 2, "max_staleness": 1})],
)
def test_the_other_policy_keeps_its_guarantee(
    tmp_path: Path, policy: str, knobs: Mapping[str, object]
) -> None:
    steps = read_records(simulate(tmp_path / "run", "async"))
    found = what_if(steps, policy, knobs)
    other = found.other
    assert not found.failure and found.never == 0
    assert other.committed == found.recorded.committed
    assert other.committed == other.applied + other.dropped
    bound = {"sync": 0, "bounded": 1}.get(policy)
    assert bound is None or max(other.histogram) <= bound
    assert other.job is not None and other.job.policy["name"] == policy


def fast_and_slow(folder: Path) -> Run:
    """Async, two workers: w0 finishes three computations while w1 finishes one."""
    log = FakeLog("async", workers=2)
    held = {worker: log.grant(worker) for worker in log.workers}
    for worker in ("w0", "w0", "w0", "w1"):
        log.commit(held[worker])
        log.apply(held.pop(worker))
        held[worker] = log.grant(worker)
    for worker in log.workers:
        log.say("abandon", worker=worker, ticket=held[worker], reason="no more data")
    folder.mkdir()
    (folder / "decisions.jsonl").write_text(text(log.end()))
    return Run(folder)


def ask(folder: Path, name: str, **knobs: object) -> Alternative:
    return what_if(read_records(fast_and_slow(folder)), name, knobs)


def test_what_a_barrier_would_not_have_granted_is_put_off(tmp_path: Path) -> None:
    found = ask(tmp_path / "run", "sync")
    assert found.recorded.histogram == {0: 3, 3: 1}
    # w0's second and third computation ended before the barrier would have let them begin.
    assert found.held == 2
    assert found.other.histogram == {0: 4}
    assert found.other.applied == {"w0": 3, "w1": 1}


def test_a_stale_contribution_is_dropped(tmp_path: Path) -> None:
    found = ask(tmp_path / "run", "bounded", max_staleness=2)
    assert found.held == 0
    assert found.other.versions == 3
    assert found.other.dropped == {"w1": 1} and found.other.reasons.total() == 1


def test_a_cancelled_computation_is_lost(tmp_path: Path) -> None:
    found = ask(tmp_path / "run", "k-sync", aggregate=1)
    # Each version makes the other's ticket void; what w1 computed for it counts nowhere.
    assert found.other.applied == {"w0": 3}
    assert found.other.cancelled["w1"] >= 1


class Hermit(Policy):
    """Grants nothing: everybody waits for ever."""

    name = "hermit"

    def __init__(self, workers: int) -> None:
        self.asked = 0

    def step(self, event: Event) -> list[Decision]:
        self.asked += isinstance(event, Ready)
        return []

    def explain(self, worker: str) -> Waiting | None:
        return Waiting("nobody")


def test_a_policy_that_deadlocks_is_told(tmp_path: Path) -> None:
    found = ask(tmp_path / "run", f"{__name__}:Hermit")
    assert "deadlocked" in found.failure
    assert found.other.versions == 0 and found.never == 4


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match='did you mean "sync"'):
        ask(tmp_path / "run", "sinc")


def test_the_other_log_can_be_written(tmp_path: Path) -> None:
    found = ask(tmp_path / "run", "sync")
    indices = [step.index for step in found.steps]
    assert indices == list(range(len(indices)))
    json.dumps([step.entry.to_json() for step in found.steps], allow_nan=False)
