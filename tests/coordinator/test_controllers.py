"""Controllers in the coordinator: decisions are entries with inputs, every 20 updates at most; people come first."""

from typing import Any

import pytest

from pslab.verify.guarded import Case, GuardedHarness
from pslab.verify.harness import CoordinatorHarness
from pslab.verify.schedule import Schedule
from psserver.coordinator import Declined, Output, Record, inputs
from psserver.decisions import entries as e
from tests.promises import promise
from tests.repetitions import repetitions, seeds
from tests.sentences import Recorder

ADASYNC = {"name": "adasync", "rate": "sqrt"}


def adapted(
    adapt: dict[str, object] = ADASYNC, optimizer: dict[str, object] | None = None, **terms: Any
) -> CoordinatorHarness:
    job = CoordinatorHarness(
        "k-async",
        {"aggregate": 1},
        workers=4,
        terms={"adapt": adapt, **terms},
        optimizer=optimizer or {"name": "sgd"},
    )
    return job.starts()


def trains(job: CoordinatorHarness, versions: int, loss: float) -> None:
    """Make so many versions more, with commits in turn."""
    goal, turn = job.version + versions, 0
    while job.version < goal:
        worker = f"w{turn % job.workers}"
        if job.holds(worker) is not None:
            job.commits(worker, loss=loss)
        turn += 1


@promise("Every decision of a controller stands in the log with its inputs.")
def test_a_decision_is_an_entry_with_its_inputs_and_the_rate() -> None:
    job = adapted()
    assert (
        dict(job.entries(e.Job)[0].adapt or {})["name"] == "adasync" and "adasync" in job.coordinator.change
    )
    trains(job, 20, 4.0)
    trains(job, 20, 0.5)
    (change,) = job.entries(e.Policy)
    assert (change.by, change.version) == ("controller adasync", 40)
    assert change.policy["aggregate"] == 2 and change.rate == pytest.approx(2**0.5)
    assert change.inputs is not None and change.inputs["first"] == 4.0 and change.inputs["loss"] == 0.5
    trains(job, 1, 0.5)
    assert job.entries(e.Apply)[-1].lr_scale == pytest.approx(2**0.5)
    assert [update.lr_scale for update in job.entries(e.Apply)[:40]] == [1.0] * 40
    found = job.verdict()
    assert found.ok and found.counts["controller"] == 0


def test_the_rate_of_a_script_and_of_a_change_are_multiplied() -> None:
    job = adapted({"name": "adasync", "rate": "linear"}, optimizer={"name": "sgd", "learning_rate": 0.1})
    trains(job, 20, 4.0)
    trains(job, 20, 0.5)
    for _ in range(2):
        for worker in ("w0", "w1", "w2", "w3"):
            if job.holds(worker) is not None:
                job.commits(worker, learning_rate=0.05)
    assert job.entries(e.Apply)[-1].lr_scale == pytest.approx(0.5 * 2)
    assert job.verdict().ok


def test_a_person_comes_first() -> None:
    job = adapted()
    trains(job, 20, 4.0)
    job.changes_policy("k-async", {"aggregate": 3}, "I know better")
    trains(job, 60, 0.01)
    assert [change.by for change in job.entries(e.Policy)] == ["operator"]
    assert job.coordinator.policy.knobs["aggregate"] == 3 and "operator" in job.coordinator.change
    # Another policy without the knob stops nothing either.
    job.changes_policy("async", {})
    trains(job, 60, 0.01)
    assert job.verdict().ok


def test_a_person_sets_the_rate_with_a_change(sentences: Recorder) -> None:
    job = CoordinatorHarness("async", workers=2).starts()
    for rate in (0.0, -1.0, float("nan"), 1e7):
        (refusal,) = job.gives(inputs.ChangeAsked("sync", {}, "operator", rate=rate))
        assert isinstance(refusal, Declined)
        sentences.check(refusal.reason)
    job.gives(inputs.ChangeAsked("k-sync", {}, "operator", rate=2.0))
    for _ in range(2):
        job.commits("w0")
        job.commits("w1")
    # A change that says nothing of the rate leaves it.
    job.changes_policy("async", {})
    job.commits("w0")
    assert [change.rate for change in job.entries(e.Policy)] == [2.0, 2.0]
    assert {update.lr_scale for update in job.entries(e.Apply)} == {2.0}
    assert job.verdict().ok


def test_servers_that_crash_go_on_with_the_controller() -> None:
    job = adapted(checkpoint_versions=1)
    trains(job, 30, 4.0)
    job.servers_crash()
    for worker in ("w0", "w1", "w2", "w3"):
        job.joins(worker, "B")
    job.ready("w0", "w1", "w2", "w3")
    assert "adasync" in job.coordinator.change and job.entries(e.Policy) == []
    trains(job, 30, 0.5)
    (change,) = job.entries(e.Policy)
    assert change.version in (40, 60) and change.inputs is not None and change.inputs["first"] == 4.0
    assert job.verdict().ok, job.verdict().violations


CASES = [
    (Case("k-sync", {"aggregate": 1}, 4), {"name": "adasync", "rate": "linear"}),
    (Case("fedbuff", {"aggregate": 2}, 4), {"name": "noise-scale", "rate": "sqrt"}),
]


class Measured(GuardedHarness):
    """The shards tell the square of each update, and losses fall, so that a controller has something to do."""

    def take(self, outputs: list[Output]) -> list[Output]:
        super().take(outputs)
        for output in outputs:
            if isinstance(output, Record) and isinstance(output.entry, e.Apply):
                self.shards_make(output.entry.version, square=1.0 + output.entry.version % 3)
        return outputs

    def commits(self, worker: str, ticket: int | None = None, **facts: Any) -> list[Output]:
        facts = {"loss": 2.0 / (1 + self.version // 16), "norm": 1.0 + self.version % 2} | facts
        return super().commits(worker, ticket, **facts)


def test_no_schedule_with_a_controller_breaks_a_promise() -> None:
    """A shard executes each log, and every check of `ps-lab check` reads it."""
    changes = 0
    for seed in seeds(6, soak=2000):
        case, adapt = CASES[seed % len(CASES)]
        others = (("async", {}),) if seed % 7 == 6 else ()
        schedule = Schedule(case, seed, job=Measured(case, adapt=adapt), batches=200, others=others)
        schedule.run(1000)
        changes += sum(change.inputs is not None for change in schedule.job.entries(e.Policy))
    # Jobs whose servers often restart, and those where a person came first, change little.
    assert 2 * changes > repetitions(6, soak=2000)
