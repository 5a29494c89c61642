"""Who may join, under which name and rank; the start; lines that break; processes that are replaced."""

import pytest

from pslab.verify.harness import CoordinatorHarness, granted, notices, refusals
from psserver.coordinator import JobOver, JoinRefused
from psserver.coordinator.members.roster import BATCHES_AHEAD, REMEMBERED_SESSIONS
from psserver.coordinator.state.saving import roster_from
from psserver.coordinator.status import report
from pswire import protocol
from pswire.decisions import entries
from tests.promises import promise
from tests.sentences import Recorder


def refusal(harness: CoordinatorHarness, worker: str, session: str, rank: int | None) -> str:
    before = harness.state()
    with pytest.raises(JoinRefused) as caught:
        harness.coordinator.join(worker, session, rank, harness.now)
    assert harness.state() == before
    return str(caught.value)


def place(harness: CoordinatorHarness, worker: str, session: str, rank: int | None) -> tuple[str, int, int]:
    member, outputs = harness.coordinator.join(worker, session, rank, harness.now)
    harness.take(outputs)
    return member.worker, member.rank, member.incarnation


# Names and ranks


@promise(
    "You can limit who may join. Where PS_JOB_SECRET is set, only the coordinator gives a shard orders, and "
    "nobody without it takes a server's place."
)
def test_without_name_and_index_the_lowest_free_is_given() -> None:
    harness = CoordinatorHarness(workers=3)
    assert place(harness, "", "A", None) == ("w0", 0, 0)
    assert place(harness, "", "B", None) == ("w1", 1, 0)
    harness.leaves("w0")
    assert place(harness, "", "C", None) == ("w0", 0, 1)


def test_a_name_of_ones_own_gets_a_free_index_and_an_index_a_name() -> None:
    harness = CoordinatorHarness(workers=3)
    assert place(harness, "berta", "A", None) == ("berta", 0, 0)
    assert place(harness, "", "B", 2) == ("w2", 2, 0)
    assert place(harness, "carla", "C", None) == ("carla", 1, 0)


def test_the_same_session_is_the_same_member() -> None:
    harness = CoordinatorHarness(workers=2)
    place(harness, "", "A", None)
    before = harness.state()
    for worker, rank in (("w0", None), ("", 0), ("w0", 0)):
        assert place(harness, worker, "A", rank) == ("w0", 0, 0)
    assert harness.state() == before


@pytest.mark.parametrize(("remembers", "forgets"), [(True, ("codec",)), (False, ())])
def test_what_a_worker_alone_remembers_is_declared_lost_when_it_joins_anew(
    remembers: bool, forgets: tuple[str, ...]
) -> None:
    """Not at its first join, and not when it had committed nothing."""
    harness = CoordinatorHarness(workers=1)
    for session in ("A", "B", "C"):
        harness.take(harness.coordinator.join("w0", session, 0, harness.now, remembers=remembers)[1])
        harness.connects("w0", session)
        if session == "B":
            harness.ready("w0")
            harness.commits("w0")
            harness.commits("w0")
    assert [join.forgets for join in harness.entries(entries.Join)] == [(), (), forgets]
    assert harness.verdict().ok


def test_an_index_belongs_to_one_worker(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=2)
    place(harness, "anna", "A", 0)
    sentences.check(refusal(harness, "berta", "B", 0))


def test_a_given_name_supersedes_nobody_by_accident(sentences: Recorder) -> None:
    """A worker called w1 with index 0; the next one without a name would have index 1, hence that name."""
    harness = CoordinatorHarness(workers=2)
    place(harness, "w1", "A", 0)
    for rank in (None, 1):
        sentences.check(refusal(harness, "", "B", rank))
    assert place(harness, "second", "B", None) == ("second", 1, 0)


def test_nobody_joins_a_job_that_is_over(sentences: Recorder) -> None:
    harness = CoordinatorHarness().starts()
    harness.take(harness.coordinator.stop("stopped by SIGTERM", harness.now, success=False, cause="SIGTERM"))
    sentences.check(refusal(harness, "w5", "Z", None))


# Unknown sessions


@pytest.mark.parametrize("incarnation", [0, 2])
def test_unknown_and_former_incarnations_are_refused_and_change_nothing(incarnation: int) -> None:
    harness = CoordinatorHarness().starts()
    harness.joins("w0", "B")
    c, now, before = harness.coordinator, harness.now, harness.state()
    ticket = harness.holds("w1")
    assert ticket is not None
    for worker in ("w0", "nobody"):
        answers = [
            c.handle(worker, incarnation, protocol.Ready(), now),
            c.handle(worker, incarnation, protocol.Commit(ticket), now),
            c.handle(worker, incarnation, protocol.Abandon(ticket, "lie"), now),
            c.handle(worker, incarnation, protocol.Done(), now),
            c.connect(worker, incarnation, "A", now),
        ]
        for outputs in answers:
            (told,) = notices(outputs, protocol.Refusal)
            assert told.fatal
            assert told.message.startswith(f"worker {worker!r}, incarnation {incarnation}, is not a member")
        assert (
            c.handle(worker, incarnation, protocol.Leave("bye"), now)
            == c.disconnect(worker, incarnation, now)
            == []
        )
    assert "; incarnation 1 is; join again" in refusals(c.handle("w0", incarnation, protocol.Ready(), now))[0]
    assert harness.state() == before


def test_a_stream_of_another_session_is_refused() -> None:
    harness = CoordinatorHarness(workers=1)
    harness.joins("w0", "A")
    assert refusals(harness.coordinator.connect("w0", 0, "not A", harness.now))


# The start


def test_the_first_grants_go_out_together_once_all_are_ready() -> None:
    harness = CoordinatorHarness(workers=3)
    harness.gathers()
    harness.ready("w1")
    harness.commits("w1", ready=False)
    harness.ready("w2", "w1")
    assert harness.coordinator.started is False
    outputs = harness.ready("w0")
    assert len(granted(outputs)) == 3
    assert harness.kinds[-4:] == ["start", "grant", "grant", "grant"]
    assert [grant.worker for grant in harness.entries(entries.Grant)] == ["w0", "w1", "w2"]


def test_one_without_data_is_not_waited_for() -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready("w0")
    assert granted(harness.done("w1")) != []


def test_one_that_never_joined_is_waited_for() -> None:
    harness = CoordinatorHarness(workers=3)
    harness.gathers("w0", "w1")
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready("w0", "w1")
    harness.passes(100)
    assert not harness.coordinator.started


@pytest.mark.parametrize("lost", ["w0", "w1", "w2"])
def test_one_that_was_lost_before_the_start_is_not(lost: str) -> None:
    """The loss of a worker never holds up the others longer than worker_timeout: not before the start either."""
    harness = CoordinatorHarness(workers=3)
    harness.gathers()
    harness.disconnects(lost)
    others = [worker for worker in ("w0", "w1", "w2") if worker != lost]
    harness.ready(others[0])
    harness.commits(others[0], ready=False)
    harness.ready(*others)
    assert not harness.coordinator.started
    outputs = harness.passes(3.1)
    assert len(granted(outputs)) == 2
    assert harness.entries(entries.Start) == [entries.Start(2)]


def test_a_restart_before_the_start_is_part_of_it() -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.ready("w1")
    harness.commits("w1", ready=False)
    harness.ready("w1")
    harness.joins("w0", "B")
    assert not harness.coordinator.started
    harness.ready("w0")
    assert harness.entries(entries.Start) == [entries.Start(2)]


def test_a_late_comer_takes_part_at_once() -> None:
    harness = CoordinatorHarness("sync", workers=2).starts()
    harness.joins("w2")
    assert granted(harness.ready("w2")) != []


def test_the_initialiser_is_the_first_by_rank_that_asks() -> None:
    harness = CoordinatorHarness(workers=3)
    harness.gathers()
    (notice,) = notices(harness.ready("w2"), protocol.Grant)
    assert notice.initialise
    assert harness.ready("w0", "w1") == []


@pytest.mark.parametrize("loss", ["abandons", "leaves", "times out"])
def test_another_initialises_when_the_first_does_not(loss: str) -> None:
    harness = CoordinatorHarness(workers=2)
    harness.gathers()
    harness.ready("w0", "w1")
    match loss:
        case "abandons":
            outputs = harness.abandons("w0")
        case "leaves":
            outputs = harness.leaves("w0")
        case _:
            harness.disconnects("w0")
            assert harness.passes(2.9) == []
            outputs = harness.passes(0.2)
    assert [notice.initialise for notice in notices(outputs, protocol.Grant)] == [True]
    assert harness.holds("w1") is not None


# Lines that break, processes that are replaced


def test_after_the_grace_period_a_lost_worker_is_given_up() -> None:
    harness = CoordinatorHarness(workers=2, terms={"worker_timeout": 30.0}).starts()
    harness.disconnects("w0")
    harness.passes(9.9)
    assert harness.holds("w0") is not None
    harness.passes(0.2)
    assert harness.entries(entries.Leave)[-1].reason == "connection lost for 10.1 s"
    assert harness.holds("w0") is None


def test_a_returning_worker_goes_on_with_its_first_uncommitted_batch() -> None:
    harness = CoordinatorHarness(workers=2).starts()
    for batch in range(3):
        harness.commits("w0", batch=batch)
    harness.abandons("w0")
    harness.leaves("w0")
    harness.joins("w0", "B")
    assert harness.incarnation("w0") == 1
    assert harness.coordinator.roster.tally("w0").next_batch == 3


def test_one_commit_does_not_use_up_a_workers_data() -> None:
    """A process that takes the name for one commit, and says that it was the last batch of all."""
    harness = CoordinatorHarness(workers=1).starts()
    harness.commits("w0", batch=2**48 - 1)
    harness.abandons("w0")
    harness.joins("w0", "B")
    assert harness.coordinator.roster.tally("w0").next_batch == 1 + BATCHES_AHEAD


def test_so_many_names_and_no_more(sentences: Recorder) -> None:
    """A name that is known may come back; another one may not take its place."""
    harness = CoordinatorHarness(workers=1, terms={"max_workers": 2}).starts()
    harness.joins("w1", "B", rank=1)
    harness.leaves("w1")
    before = len(harness.log)
    with pytest.raises(JoinRefused) as refused:
        harness.joins("w2", "C", rank=2)
    sentences.check(refused)
    assert len(harness.log) == before
    harness.joins("w1", "D", rank=1)


def test_names_that_are_allowed_and_no_others(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=1, terms={"allowed": ("w0", "anna")}).starts()
    with pytest.raises(JoinRefused) as refused:
        harness.joins("eve", "B", rank=1)
    sentences.check(refused)
    harness.joins("anna", "C", rank=1)


def test_a_newer_process_replaces_the_older() -> None:
    harness = CoordinatorHarness("sync", workers=2).starts()
    harness.commits("w1")
    old = harness.holds("w0")
    before = len(harness.told)
    harness.joins("w0", "B")
    first = harness.told[before]
    assert (first.worker, first.incarnation) == ("w0", 0)
    assert first.notice == protocol.Refusal("another process joined as 'w0'", fatal=True)
    assert harness.entries(entries.Cancel)[-1] == entries.Cancel("w0", old or 0, "w0 left")
    # The barrier did not wait for the former process either.
    assert harness.version == 1
    assert granted(harness.ready("w0")) != []


def test_so_many_processes_of_a_name_are_remembered_and_no_more(sentences: Recorder) -> None:
    """Whoever joins and leaves all day costs no memory; an older process is told apart from the present one."""
    harness = CoordinatorHarness(workers=1).starts()
    sessions = [f"s{number}" for number in range(3 * REMEMBERED_SESSIONS)]
    for session in sessions:
        harness.joins("w0", session)
    kept = harness.coordinator.roster.tally("w0").sessions
    assert list(kept) == sessions[-REMEMBERED_SESSIONS:]
    for older in sessions[-REMEMBERED_SESSIONS:-1]:
        sentences.check(refusal(harness, "w0", older, 0))
    # The present one comes back as itself, and behind its departure once more as the newest.
    assert harness.joins("w0", sessions[-1]).incarnation == len(sessions)
    harness.leaves("w0")
    harness.joins("w0", sessions[-2])
    assert list(kept)[-2:] == [sessions[-1], sessions[-2]] and len(kept) == REMEMBERED_SESSIONS
    assert roster_from(harness.coordinator.state(), 0.0).tally("w0").sessions == kept


# A part of the workers is enough to begin


def test_the_start_waits_for_so_many_workers_only(sentences: Recorder) -> None:
    """Those that come later take part: under a barrier, the next version is made of theirs, too."""
    harness = CoordinatorHarness("sync", workers=4, terms={"min_workers": 2})
    first = harness.log[0].entry
    assert isinstance(first, entries.Job) and (first.workers, first.min_workers) == (4, 2)
    harness.joins("w0")
    sentences.check(report(harness.coordinator, harness.now).note)
    harness.starts("w0", "w3")
    assert harness.coordinator.started
    harness.joins("w1", "B")
    harness.ready("w1")
    harness.commits("w0")
    harness.commits("w3")
    assert harness.coordinator.version == 0 and harness.holds("w1") is not None
    harness.commits("w1")
    assert harness.coordinator.version == 1


def test_all_workers_are_needed_unless_it_is_said() -> None:
    harness = CoordinatorHarness(workers=2)
    first = harness.log[0].entry
    assert isinstance(first, entries.Job) and first.min_workers is None
    harness.joins("w0")
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready("w0")
    assert not harness.coordinator.started and harness.coordinator.missing == 1


def test_a_worker_that_is_started_again_after_the_end_hears_of_the_success(sentences: Recorder) -> None:
    """Only then: a job that failed refuses it."""
    harness = CoordinatorHarness(workers=1).starts()
    harness.commits("w0", ready=False)
    harness.done("w0")
    assert harness.coordinator.stopped is not None and harness.coordinator.stopped.success
    with pytest.raises(JobOver) as refused:
        harness.joins("w0", "B")
    sentences.check(refused)
    failed = CoordinatorHarness(workers=1).starts()
    failed.take(failed.coordinator.stop("stopped by SIGTERM", failed.now, success=False, cause="SIGTERM"))
    with pytest.raises(JoinRefused) as caught:
        failed.joins("w0", "B")
    assert not isinstance(caught.value, JobOver)
