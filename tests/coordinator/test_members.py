"""Who may join, under which name and rank; the start; lines that break; processes that are replaced."""

import pytest

from pslab.verify.harness import CoordinatorHarness, JoinError, notices, refusals
from psserver.coordinator import JobState, inputs
from psserver.coordinator.roster import BATCHES_AHEAD, REMEMBERED_SESSIONS
from psserver.decisions import entries
from pswire import protocol
from tests.promises import promise
from tests.sentences import Recorder


def refusal(harness: CoordinatorHarness, worker: str, session: str, rank: int | None) -> str:
    before = harness.state()
    with pytest.raises(JoinError) as caught:
        harness.join(worker, session, rank)
    assert harness.state() == before
    return str(caught.value)


def place(harness: CoordinatorHarness, worker: str, session: str, rank: int | None) -> tuple[str, int, int]:
    member = harness.join(worker, session, rank)
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
        harness.join("w0", session, 0, remembers=remembers)
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


def test_nobody_joins_once_the_policy_has_failed_as_the_former_process_left() -> None:
    harness = CoordinatorHarness("tests.verify.faulty_policies:RaisesOnLeave").starts()
    with pytest.raises(JoinError, match="the job is over: policy RaisesOnLeave failed on Leave") as caught:
        harness.join("w0", "B", 0)
    assert caught.value.answer.kind == "stopped"
    assert harness.kinds[-1] == "stop" and harness.verdict().ok


# Unknown sessions


@pytest.mark.parametrize("incarnation", [0, 2])
def test_unknown_and_former_incarnations_are_refused_and_change_nothing(incarnation: int) -> None:
    harness = CoordinatorHarness().starts()
    harness.joins("w0", "B")
    c, now, before = harness.coordinator, harness.now, harness.state()
    ticket = harness.holds("w1")
    assert ticket is not None
    for worker in ("w0", "nobody"):
        asked = (protocol.Ready(), protocol.Commit(ticket), protocol.Abandon(ticket, "lie"), protocol.Done())
        for given in (
            *(inputs.Requested(worker, incarnation, request) for request in asked),
            inputs.Connected(worker, incarnation, "A"),
        ):
            (told,) = notices(c.take(given, now), protocol.Refusal)
            assert told.fatal
            assert told.message.startswith(f"worker {worker!r}, incarnation {incarnation}, is not a member")
        assert c.take(inputs.Requested(worker, incarnation, protocol.Leave("bye")), now) == []
        assert c.take(inputs.Disconnected(worker, incarnation), now) == []
    refused = c.take(inputs.Requested("w0", incarnation, protocol.Ready()), now)
    assert "; incarnation 1 is; join again" in refusals(refused)[0]
    assert harness.state() == before


def test_a_stream_of_another_session_is_refused() -> None:
    harness = CoordinatorHarness(workers=1)
    harness.joins("w0", "A")
    assert refusals(harness.coordinator.take(inputs.Connected("w0", 0, "not A"), harness.now))


# The start


# Lines that break, processes that are replaced


def test_a_returning_worker_goes_on_with_its_first_uncommitted_batch() -> None:
    harness = CoordinatorHarness(workers=2).starts()
    for batch in range(3):
        harness.commits("w0", batch=batch)
    harness.abandons("w0")
    harness.leaves("w0")
    harness.joins("w0", "B")
    assert harness.incarnation("w0") == 1
    assert harness.coordinator.state.roster.tally("w0").next_batch == 3


def test_one_commit_does_not_use_up_a_workers_data() -> None:
    """A process that takes the name for one commit, and says that it was the last batch of all."""
    harness = CoordinatorHarness(workers=1).starts()
    harness.commits("w0", batch=2**48 - 1)
    harness.abandons("w0")
    harness.joins("w0", "B")
    assert harness.coordinator.state.roster.tally("w0").next_batch == 1 + BATCHES_AHEAD


def test_names_that_are_allowed_and_no_others(sentences: Recorder) -> None:
    harness = CoordinatorHarness(workers=1, terms={"allowed": ("w0", "anna")}).starts()
    with pytest.raises(JoinError) as refused:
        harness.joins("eve", "B", rank=1)
    sentences.check(refused)
    harness.joins("anna", "C", rank=1)


def test_so_many_processes_of_a_name_are_remembered_and_no_more(sentences: Recorder) -> None:
    """Whoever joins and leaves all day costs no memory; an older process is told apart from the present one."""
    harness = CoordinatorHarness(workers=1).starts()
    sessions = [f"s{number}" for number in range(3 * REMEMBERED_SESSIONS)]
    for session in sessions:
        harness.joins("w0", session)
    kept = harness.coordinator.state.roster.tally("w0").sessions
    assert list(kept) == sessions[-REMEMBERED_SESSIONS:]
    for older in sessions[-REMEMBERED_SESSIONS:-1]:
        sentences.check(refusal(harness, "w0", older, 0))
    # The present one comes back as itself, and behind its departure once more as the newest.
    assert harness.joins("w0", sessions[-1]).incarnation == len(sessions)
    harness.leaves("w0")
    harness.joins("w0", sessions[-2])
    assert list(kept)[-2:] == [sessions[-1], sessions[-2]] and len(kept) == REMEMBERED_SESSIONS
    assert JobState.read(harness.coordinator.saved()).roster.tally("w0").sessions == kept


# A part of the workers is enough to begin
