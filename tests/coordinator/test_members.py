"""Who may join, under which name and rank; the start; lines that break; processes that are replaced."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted, notices, refusals
from psserver.coordinator import JoinRefused, entries
from psserver.coordinator.outputs import DispositionNotice, GrantNotice, RefusalNotice


def refusal(house: CoordinatorHarness, worker: str, session: str, rank: int | None) -> str:
    before = house.state()
    with pytest.raises(JoinRefused) as caught:
        house.coordinator.join(worker, session, rank, house.now)
    assert house.state() == before
    return str(caught.value)


def place(house: CoordinatorHarness, worker: str, session: str, rank: int | None) -> tuple[str, int, int]:
    member, outputs = house.coordinator.join(worker, session, rank, house.now)
    house.take(outputs)
    return member.worker, member.rank, member.incarnation


# Names and ranks


def test_without_name_and_index_the_lowest_free_is_given() -> None:
    house = CoordinatorHarness(workers=3)
    assert place(house, "", "A", None) == ("w0", 0, 0)
    assert place(house, "", "B", None) == ("w1", 1, 0)
    house.leaves("w0")
    assert place(house, "", "C", None) == ("w0", 0, 1)


def test_a_name_of_ones_own_gets_a_free_index_and_an_index_a_name() -> None:
    house = CoordinatorHarness(workers=3)
    assert place(house, "berta", "A", None) == ("berta", 0, 0)
    assert place(house, "", "B", 2) == ("w2", 2, 0)
    assert place(house, "carla", "C", None) == ("carla", 1, 0)


def test_the_same_session_is_the_same_member() -> None:
    house = CoordinatorHarness(workers=2)
    place(house, "", "A", None)
    before = house.state()
    for worker, rank in (("w0", None), ("", 0), ("w0", 0)):
        assert place(house, worker, "A", rank) == ("w0", 0, 0)
    assert house.state() == before


def test_an_index_belongs_to_one_worker() -> None:
    house = CoordinatorHarness(workers=2)
    place(house, "anna", "A", 0)
    assert refusal(house, "berta", "B", 0) == (
        "task index 0 belongs to worker 'anna'; 'berta' needs another one (the lowest free is 1)"
    )


def test_a_given_name_supersedes_nobody_by_accident() -> None:
    """A worker called w1 with index 0; the next one without a name would have index 1, hence that name."""
    house = CoordinatorHarness(workers=2)
    place(house, "w1", "A", 0)
    for rank in (None, 1):
        assert refusal(house, "", "B", rank) == (
            "task index 1 would be named 'w1', which is the name of the worker with task index 0: "
            "expected a name of its own for it (--name)"
        )
    assert place(house, "second", "B", None) == ("second", 1, 0)


def test_nobody_joins_a_job_that_is_over() -> None:
    house = CoordinatorHarness().starts()
    house.take(house.coordinator.stop("stopped by SIGTERM", house.now, success=False, cause="SIGTERM"))
    assert refusal(house, "w5", "Z", None) == "the job is over: stopped by SIGTERM"


# Strangers


@pytest.mark.parametrize("incarnation", [0, 2])
def test_strangers_and_ghosts_are_refused_and_change_nothing(incarnation: int) -> None:
    house = CoordinatorHarness().starts()
    house.joins("w0", "B")
    c, now, before = house.coordinator, house.now, house.state()
    ticket = house.holds("w1")
    assert ticket is not None
    for worker in ("w0", "nobody"):
        answers = [
            c.ready(worker, incarnation, now),
            c.commit(worker, incarnation, ticket, now),
            c.abandon(worker, incarnation, ticket, "lie", now),
            c.done(worker, incarnation, now),
            c.connect(worker, incarnation, "A", now),
        ]
        for outputs in answers:
            (told,) = notices(outputs, RefusalNotice)
            assert told.fatal
            assert told.message.startswith(f"worker {worker!r}, incarnation {incarnation}, is not a member")
        assert c.leave(worker, incarnation, "bye", now) == c.disconnect(worker, incarnation, now) == []
    assert "; incarnation 1 is; join again" in refusals(c.ready("w0", incarnation, now))[0]
    assert house.state() == before


def test_a_line_of_another_session_is_a_strangers() -> None:
    house = CoordinatorHarness(workers=1)
    house.joins("w0", "A")
    assert refusals(house.coordinator.connect("w0", 0, "not A", house.now))


# The start


def test_the_first_grants_go_out_together_once_all_are_ready() -> None:
    house = CoordinatorHarness(workers=3)
    house.gathers()
    house.ready("w1")
    house.commits("w1", ready=False)
    house.ready("w2", "w1")
    assert house.coordinator.started is False
    outputs = house.ready("w0")
    assert len(granted(outputs)) == 3
    assert house.kinds[-4:] == ["start", "grant", "grant", "grant"]
    assert [grant.worker for grant in house.entries(entries.Grant)] == ["w0", "w1", "w2"]


def test_one_without_data_is_not_waited_for() -> None:
    house = CoordinatorHarness(workers=2)
    house.gathers()
    house.ready("w0")
    house.commits("w0", ready=False)
    house.ready("w0")
    assert granted(house.done("w1")) != []


def test_one_that_never_joined_is_waited_for() -> None:
    house = CoordinatorHarness(workers=3)
    house.gathers("w0", "w1")
    house.ready("w0")
    house.commits("w0", ready=False)
    house.ready("w0", "w1")
    house.passes(100)
    assert not house.coordinator.started


@pytest.mark.parametrize("lost", ["w0", "w1", "w2"])
def test_one_that_was_lost_before_the_start_is_not(lost: str) -> None:
    """The loss of a worker never holds up the others longer than worker_timeout: not before the start either."""
    house = CoordinatorHarness(workers=3)
    house.gathers()
    house.disconnects(lost)
    others = [worker for worker in ("w0", "w1", "w2") if worker != lost]
    house.ready(others[0])
    house.commits(others[0], ready=False)
    house.ready(*others)
    assert not house.coordinator.started
    outputs = house.passes(3.1)
    assert len(granted(outputs)) == 2
    assert house.entries(entries.Start) == [entries.Start(2)]


def test_a_restart_before_the_start_is_part_of_it() -> None:
    house = CoordinatorHarness(workers=2)
    house.gathers()
    house.ready("w1")
    house.commits("w1", ready=False)
    house.ready("w1")
    house.joins("w0", "B")
    assert not house.coordinator.started
    house.ready("w0")
    assert house.entries(entries.Start) == [entries.Start(2)]


def test_a_late_comer_takes_part_at_once() -> None:
    house = CoordinatorHarness("sync", workers=2).starts()
    house.joins("w2")
    assert granted(house.ready("w2")) != []


def test_the_initialiser_is_the_first_by_rank_that_asks() -> None:
    house = CoordinatorHarness(workers=3)
    house.gathers()
    (notice,) = notices(house.ready("w2"), GrantNotice)
    assert notice.initialise
    assert house.ready("w0", "w1") == []


@pytest.mark.parametrize("loss", ["abandons", "leaves", "times out"])
def test_another_initialises_when_the_first_does_not(loss: str) -> None:
    house = CoordinatorHarness(workers=2)
    house.gathers()
    house.ready("w0", "w1")
    match loss:
        case "abandons":
            outputs = house.abandons("w0")
        case "leaves":
            outputs = house.leaves("w0")
        case _:
            house.disconnects("w0")
            assert house.passes(2.9) == []
            outputs = house.passes(0.2)
    assert [notice.initialise for notice in notices(outputs, GrantNotice)] == [True]
    assert house.holds("w1") is not None


# Lines that break, processes that are replaced


def test_a_worker_that_comes_back_in_time_misses_nothing() -> None:
    house = CoordinatorHarness("async", workers=2).starts()
    ticket = house.holds("w0")
    assert ticket is not None
    house.disconnects("w0")
    house.passes(2.9)
    (grant,) = notices(house.connects("w0"), GrantNotice)
    assert (grant.ticket, grant.version, grant.initialise) == (ticket, 0, False)
    house.disconnects("w0")
    house.commits("w0", ready=False)  # it was on its way
    outputs = house.connects("w0")
    # The fate was told to a line that did not exist: it is told again.
    assert DispositionNotice(ticket, "applied", 1, 0, 1.0) in notices(outputs, DispositionNotice)
    assert house.kinds.count("lost") == house.kinds.count("back") == 2


def test_a_commit_that_was_resent_after_a_reconnection_counts_once() -> None:
    house = CoordinatorHarness("bounded", {"aggregate": 2}, workers=2).starts()
    ticket = house.holds("w0")
    house.commits("w0", ready=False)
    house.disconnects("w0")
    house.connects("w0")
    assert notices(house.commits("w0", ticket, ready=False), DispositionNotice) == [
        DispositionNotice(ticket or 0, "pending")
    ]
    assert house.kinds.count("commit") == 1


def test_a_ready_that_was_repeated_brings_the_same_ticket() -> None:
    house = CoordinatorHarness(workers=2).starts()
    ticket = house.holds("w0")
    before = house.state()
    assert granted(house.ready("w0")) == [ticket]
    assert house.state() == before


def test_a_repeated_ready_of_one_that_waits_changes_nothing() -> None:
    house = CoordinatorHarness("sync", workers=2).starts()
    house.commits("w0")
    before = house.state()
    assert house.ready("w0", "w0") == []
    assert house.state() == before


def test_after_the_grace_period_a_lost_worker_is_given_up() -> None:
    house = CoordinatorHarness(workers=2, terms={"worker_timeout": 30.0}).starts()
    house.disconnects("w0")
    house.passes(9.9)
    assert house.holds("w0") is not None
    house.passes(0.2)
    assert house.entries(entries.Leave)[-1].reason == "connection lost for 10.1 s"
    assert house.holds("w0") is None


def test_one_that_joins_and_never_connects_is_given_up() -> None:
    house = CoordinatorHarness(workers=1)
    place(house, "w0", "A", 0)
    house.passes(3.0)
    assert house.kinds[-2:] == ["join", "leave"]


def test_a_returning_worker_goes_on_with_its_first_uncommitted_batch() -> None:
    house = CoordinatorHarness(workers=2).starts()
    for batch in range(3):
        house.commits("w0", batch=batch)
    house.abandons("w0")
    house.leaves("w0")
    house.joins("w0", "B")
    assert house.incarnation("w0") == 1
    assert house.coordinator.roster.tally("w0").next_batch == 3


def test_a_newer_process_replaces_the_older() -> None:
    house = CoordinatorHarness("sync", workers=2).starts()
    house.commits("w1")
    old = house.holds("w0")
    before = len(house.told)
    house.joins("w0", "B")
    first = house.told[before]
    assert (first.worker, first.incarnation) == ("w0", 0)
    assert first.notice == RefusalNotice("another process joined as 'w0'", fatal=True)
    assert house.entries(entries.Cancel)[-1] == entries.Cancel("w0", old or 0, "w0 left")
    # The barrier did not wait for the ghost either.
    assert house.version == 1
    assert granted(house.ready("w0")) != []
