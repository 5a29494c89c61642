"""Whose work did not count is said at the end of a job."""

import numpy as np
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import inputs
from psserver.coordinator.roster import Tally
from psserver.summary import LEAST, summarise, uncounted
from tests.keras.in_process import in_threads
from tests.links import connect_link
from tests.promises import promise
from tests.sentences import Recorder
from tests.service.serving import granted, serving, wait_until


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


def test_nobody_is_named_under_a_policy_that_takes_all() -> None:
    for policy in ("sync", "async"):
        harness = slow_worker(policy, {}, 3 * LEAST)
        harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
        assert "uncounted" not in summarise(harness.coordinator, metrics={}, seconds=1.0, sha256=None)


def tally(granted: int, committed: int, applied: int, weight: float) -> Tally:
    return Tally(granted=granted, committed=committed, applied=applied, weight=weight)


def test_the_end_names_workers_whose_work_did_not_count(sentences: Recorder) -> None:
    tallies = {"w0": tally(60, 60, 60, 30.0), "w1": tally(60, 60, 48, 24.0), "w2": tally(60, 60, 60, 0.6)}
    sentences.check(uncounted({**tallies, "w7": tally(28, 28, 0, 0.0), "w8": tally(34, 0, 0, 0.0)}))
    few = {"w0": tally(60, 60, 59, 9.0), "w1": tally(4, 0, 0, 0.0), "w2": tally(0, 0, 0, 0.0)}
    assert uncounted(few) == ""
    assert uncounted({name: tally(60, 60, 60, 0.0) for name in ("w0", "w1")}) == ""
    harness = slow_worker("bounded", {"max_staleness": 2}, LEAST)
    harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "versions"), harness.now))
    found = summarise(harness.coordinator, metrics={}, seconds=1.0, sha256=None)
    assert found["uncounted"].startswith("w2: none of its ")
    harness = slow_worker("bounded", {"max_staleness": 0, "on_stale": "downweight"}, LEAST + 2, 16)
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
