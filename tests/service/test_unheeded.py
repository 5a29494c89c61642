"""Whose work does not count is said while the job runs, and at its end, by the servers and by the worker."""

import numpy as np
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.service.job.unheeded import Unheeded
from psserver.summary import summarise
from pswire.starving import STARVED, uncounted
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.fates import Fates
from psworker.control.joining import Joined
from tests.keras.in_process import in_threads
from tests.links import connect_link
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.serving import granted, serving, wait_until

# A policy under which the results of a slow worker never count.
STARVING = (
    ("bounded", {"max_staleness": 2}),
    ("ringmaster", {"threshold": 2}),
    ("k-sync", {"aggregate": 2}),
)


def slow_worker(policy: str, knobs: dict[str, object], rounds: int, times: int = 4) -> CoordinatorHarness:
    """Two fast workers, and w2, whose steps take as long as `times` of theirs."""
    harness = CoordinatorHarness(policy, knobs, 3, now=0.0).starts()
    held, since = None, 0
    for number in range(times * rounds):
        for worker in ("w0", "w1", "w2"):
            harness.passes(0.1)
            if harness.holds(worker) is None:
                harness.ready(worker)
            if worker == "w2" and harness.holds(worker) != held:
                held, since = harness.holds(worker), number
            if harness.holds(worker) is not None and (worker != "w2" or number - since == times):
                harness.commits(worker)
    return harness


def of_kind(caplog: pytest.LogCaptureFixture, kind: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == kind]


@pytest.mark.parametrize(("policy", "knobs"), STARVING)
def test_a_worker_whose_results_are_all_too_old_is_named_once(
    policy: str, knobs: dict[str, object], caplog: pytest.LogCaptureFixture, sentences: Recorder
) -> None:
    harness = slow_worker(policy, knobs, 3 * STARVED)
    watch = Unheeded(lambda: harness.coordinator.policy)
    for record in harness.log:
        watch.see(record.entry)
    (found,) = of_kind(caplog, "worker_starves")
    sentences.check(found)
    assert "w2 starves" in found and all(name in found for name in knobs)


@pytest.mark.parametrize(("policy", "knobs"), STARVING)
def test_the_worker_is_told_too_and_at_the_end_that_nothing_counted(
    policy: str, knobs: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    harness = slow_worker(policy, knobs, 3 * STARVED)
    harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
    for worker, expected in (("w0", 0), ("w2", 1)):
        fates = Fates(
            Joined(pb.JoinReply(worker=worker, policy='{"name": "some", "a": 1}'), "s", numbered=True)
        )
        caplog.clear()
        for each in harness.told:
            if each.worker == worker:
                fates.see(each.notice)
        assert len(of_kind(caplog, "worker_starves")) == expected
        assert len(of_kind(caplog, "uncounted")) == expected


def test_nobody_is_named_under_a_policy_that_takes_all(caplog: pytest.LogCaptureFixture) -> None:
    for policy in ("sync", "async"):
        harness = slow_worker(policy, {}, 3 * STARVED)
        watch = Unheeded(lambda: harness.coordinator.policy)  # noqa: B023
        for record in harness.log:
            watch.see(record.entry)
        harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
        assert "uncounted" not in summarise(harness.coordinator, metrics={}, seconds=1.0, sha256=None)
    assert not caplog.records


def test_too_few_contributions_are_named_at_the_first_and_under_each_policy(
    caplog: pytest.LogCaptureFixture, sentences: Recorder
) -> None:
    harness = CoordinatorHarness("krum", {"byzantine": 1}, 5, now=0.0).starts()
    harness.leaves("w4")
    for _ in range(3):
        for worker in ("w0", "w1", "w2", "w3"):
            harness.commits(worker)
    watch = Unheeded(lambda: harness.coordinator.policy)
    for record in harness.log:
        watch.see(record.entry)
    (found,) = of_kind(caplog, "too_few")
    sentences.check(found)


def test_the_end_names_workers_whose_work_did_not_count(sentences: Recorder) -> None:
    tallies = {"w0": (60, 60, 60, 30.0), "w1": (60, 60, 48, 24.0), "w2": (60, 60, 60, 0.6)}
    sentences.check(uncounted({**tallies, "w7": (28, 28, 0, 0.0), "w8": (34, 0, 0, 0.0)}))
    assert uncounted({"w0": (60, 60, 59, 9.0), "w1": (4, 0, 0, 0.0), "w2": (0, 0, 0, 0.0)}) == ""
    assert uncounted({"w0": (60, 60, 60, 0.0), "w1": (60, 60, 60, 0.0)}) == ""
    harness = slow_worker("bounded", {"max_staleness": 2}, STARVED)
    harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
    found = summarise(harness.coordinator, metrics={}, seconds=1.0, sha256=None)
    assert found["uncounted"].startswith("w2: none of its ")
    harness = slow_worker("bounded", {"max_staleness": 0, "on_stale": "downweight"}, STARVED + 2, 16)
    harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
    found = summarise(harness.coordinator, metrics={}, seconds=1.0, sha256=None)
    sentences.check(found["uncounted"])
    assert found["uncounted"].startswith("w2: its ")


@promise("A worker's wish to end the job that does not count alone is in the server's log.")
def test_an_end_that_awaits_others_is_said(caplog: pytest.LogCaptureFixture) -> None:
    start = {"w": np.zeros(3, np.float32)}

    def said() -> list[str]:
        return [
            each.fields["worker"]
            for each in caplog.records
            if getattr(each, "event", "") == "end_awaits_others"
        ]

    def work(index: int) -> str:
        with connect_link(cluster.hosts, start, task_index=index) as session:
            grant = granted(session)
            session.push(grant, {"w": np.ones(3, np.float32)})
            session.commit(grant, samples=1)
            # There is a version, of all three.
            granted(session)
            if index == 1:
                wait_until(lambda: bool(said()), "the first worker's wish")
            return session.done("it has seen enough" if index < 2 else "").reason

    with serving(workers=3, policy="median") as cluster:
        reasons = in_threads(work, 3)
    assert len(said()) == 1
    assert set(reasons) == {"w1 ended the job: it has seen enough"}
