"""How a job ends: the data, a number of versions, a signal, nobody left. And when it must not."""

import pytest

from pslab.verify.harness import CoordinatorHarness, notices, refusals
from psserver.coordinator import entries
from psserver.coordinator.outputs import StopNotice


def finishes(house: CoordinatorHarness, *workers: str) -> None:
    for worker in workers:
        if house.holds(worker) is not None:
            house.commits(worker, ready=False)
        house.done(worker)


def test_when_all_are_done_so_is_the_job() -> None:
    house = CoordinatorHarness(workers=2).starts()
    finishes(house, "w0")
    assert house.stopped == ""
    house.commits("w1", ready=False)
    outputs = house.done("w1")
    assert house.stopped == "done: all workers are done"
    stops = notices(outputs, StopNotice)
    assert [(s.version, s.success, s.evaluate) for s in stops] == [(2, True, True), (2, True, False)]
    assert all(s.index == house.log[-1].index for s in stops)


def test_over_is_when_everybody_has_left() -> None:
    house = CoordinatorHarness(workers=2).starts()
    finishes(house, "w0", "w1")
    assert not house.coordinator.over
    house.leaves("w0")
    house.disconnects("w1")
    assert not house.coordinator.over
    house.passes(3)
    assert house.coordinator.over
    reasons = [leave.reason for leave in house.entries(entries.Leave)]
    assert reasons == ["finished", "connection lost for 3.0 s"]


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("sync", {}),
        ("async", {}),
        ("bounded", {"aggregate": 2}),
        ("bounded", {"aggregate": 2, "max_staleness": 0, "on_stale": "block"}),
        ("ssp", {"slack": 0}),
    ],
)
def test_uneven_data(policy: str, knobs: dict[str, object]) -> None:
    """One has 3 batches, the other 11: nothing is lost, nobody waits for who is done."""
    house = CoordinatorHarness(policy, knobs, workers=2).starts()
    left = {"w0": 3, "w1": 11}
    for _ in range(100):
        for worker in ("w0", "w1"):
            if house.holds(worker) is not None:
                left[worker] -= 1
                house.commits(worker, ready=left[worker] > 0)
                if not left[worker]:
                    house.done(worker)
    assert left == {"w0": 0, "w1": 0}
    assert house.stopped == "done: all workers are done"
    tallies = house.coordinator.roster.tallies
    assert [(t.committed, t.pending) for t in tallies.values()] == [(3, 0), (11, 0)]
    assert house.verdict().violations == ()


def test_a_number_of_versions() -> None:
    house = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2, terms={"versions": 3}).starts()
    for _ in range(3):
        house.commits("w0")
        house.commits("w1")
    assert house.stopped == "versions: version 3 is reached"
    assert (house.version, house.coordinator.stopped and house.coordinator.stopped.success) == (3, True)
    assert house.verdict().violations == ()


def test_a_stop_closes_the_books() -> None:
    """Open tickets are cancelled, committed ones dropped with a reason; nothing is decided afterwards."""
    house = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2).starts()
    open_ticket = house.holds("w1")
    house.commits("w0", ready=False)
    house.take(house.coordinator.stop("stopped by SIGINT", house.now, success=False, cause="SIGINT"))
    assert house.kinds[-3:] == ["cancel", "drop", "stop"]
    assert house.entries(entries.Drop)[-1].reason == "stopped"
    assert house.coordinator.roster.tally("w0").pending == 0
    size = len(house.log)
    assert notices(house.ready("w0"), StopNotice)
    assert refusals(house.commits("w1", open_ticket)) == []
    house.abandons("w1", open_ticket)
    house.done("w0")
    house.passes(1)
    house.take(house.coordinator.stop("again", house.now, success=True, cause="done"))
    assert (len(house.log), house.stopped) == (size, "SIGINT: stopped by SIGINT")


def test_only_after_a_success_somebody_evaluates() -> None:
    for success in (True, False):
        house = CoordinatorHarness(workers=2).starts()
        outputs = house.take(house.coordinator.stop("so", house.now, success=success, cause="server"))
        assert [s.evaluate for s in notices(outputs, StopNotice)] == [success, False]


def test_who_is_away_at_the_stop_hears_of_it_on_its_return() -> None:
    house = CoordinatorHarness(workers=2).starts()
    house.disconnects("w0")
    outputs = house.take(house.coordinator.stop("so", house.now, success=True, cause="done"))
    assert [(t.worker, t.notice.evaluate) for t in house.told if isinstance(t.notice, StopNotice)] == [
        ("w1", True)
    ]
    assert len(notices(outputs, StopNotice)) == 1
    house.joins("w0")
    (stop,) = notices(house.connects("w0"), StopNotice)
    assert not stop.evaluate


def test_a_line_that_breaks_before_the_stop_was_heard() -> None:
    house = CoordinatorHarness(workers=2).starts()
    finishes(house, "w0", "w1")
    house.disconnects("w1")
    house.passes(1)
    before = len(house.told)
    house.joins("w1")
    assert [t.worker for t in house.told[before:] if isinstance(t.notice, StopNotice)] == ["w1"]


def test_the_work_of_one_who_vanished_is_waited_for_but_not_for_ever() -> None:
    """It may be about to come back and finish its data."""
    house = CoordinatorHarness(workers=2).starts()
    house.leaves("w0", "killed")
    finishes(house, "w1")
    assert house.stopped == ""
    house.passes(8.9)
    assert house.stopped == ""
    house.passes(0.2)
    assert house.stopped == "done: all workers are done; w0 left before its data ended"


def test_one_who_comes_back_finishes_its_data_first() -> None:
    house = CoordinatorHarness(workers=2).starts()
    house.leaves("w0", "killed")
    finishes(house, "w1")
    house.passes(5)
    house.joins("w0", "B")
    house.ready("w0")
    house.passes(50)
    assert house.stopped == ""
    finishes(house, "w0")
    assert house.stopped == "done: all workers are done"


def test_done_and_gone_is_done() -> None:
    house = CoordinatorHarness(workers=2).starts()
    finishes(house, "w0")
    house.leaves("w0")
    finishes(house, "w1")
    assert house.stopped == "done: all workers are done"


def test_done_gives_up_what_is_still_open() -> None:
    house = CoordinatorHarness("sync", workers=2).starts()
    house.commits("w1")
    ticket = house.holds("w0")
    house.done("w0")
    assert house.entries(entries.Abandon) == [entries.Abandon("w0", ticket or 0, "done")]
    assert house.version == 1


def test_done_is_final() -> None:
    house = CoordinatorHarness(workers=2).starts()
    finishes(house, "w0")
    assert refusals(house.ready("w0")) == ["w0 said ready after done: expected nothing more from it"]
    assert house.done("w0") == []


def test_nobody_for_too_long() -> None:
    house = CoordinatorHarness(workers=2, terms={"idle_timeout": 60.0})
    house.passes(59.9)
    assert house.stopped == ""
    house.passes(0.1)
    assert house.stopped == "abandoned: no worker for 60 s"
    assert house.coordinator.over


def test_idle_time_counts_from_the_last_departure() -> None:
    house = CoordinatorHarness(workers=2, terms={"idle_timeout": 60.0}).starts()
    house.passes(100)
    house.leaves("w0")
    house.leaves("w1")
    house.passes(50)
    house.joins("w0", "B")
    house.passes(100)
    assert house.stopped == ""
    house.leaves("w0")
    house.passes(60)
    assert house.stopped == "abandoned: no worker for 60 s"


def test_idle_for_ever_when_told_so() -> None:
    house = CoordinatorHarness(workers=1, terms={"idle_timeout": 0.0})
    house.passes(1e6)
    assert house.stopped == ""


def test_servers_that_stay() -> None:
    house = CoordinatorHarness(workers=1, terms={"stay": True}).starts()
    house.commits("w0", ready=False)
    (stop,) = notices(house.done("w0"), StopNotice)
    assert (stop.index, stop.success, stop.version) == (0, True, 1)
    house.leaves("w0")
    house.passes(500)
    assert house.stopped == ""
    house.joins("w0", "B")
    house.ready("w0")
    assert house.holds("w0") is not None


def test_nobody_had_any_data() -> None:
    """There is no model and never will be: an end, and not in success."""
    house = CoordinatorHarness(workers=2)
    house.gathers()
    house.done("w0")
    assert house.stopped == ""
    outputs = house.done("w1")
    assert house.stopped == "empty: all workers are done and nothing was trained: there is no model"
    assert [s.evaluate for s in notices(outputs, StopNotice)] == [False, False]
    assert house.verdict().violations == ()


def test_a_late_worker_may_have_the_data() -> None:
    house = CoordinatorHarness(workers=2)
    house.gathers("w0")
    house.done("w0")
    house.joins("w1")
    house.ready("w1")
    house.commits("w1")
    assert house.coordinator.started
