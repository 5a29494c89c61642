"""What a session owes: nothing that was sent is lost on a broken stream, nothing that was answered is sent again."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psworker.engine import (
    Abandon,
    Cancel,
    ClientEngine,
    Commit,
    Disposition,
    Done,
    Grant,
    Leave,
    Ready,
    Refusal,
    Report,
    Request,
    Stop,
)
from psworker.errors import Refused, SessionError
from tests.repetitions import repetitions

FATES = ["applied", "dropped", "pending"]


def grant(ticket: int) -> Grant:
    return Grant(ticket, version=0, index=ticket)


def cancel(ticket: int) -> Cancel:
    return Cancel(ticket, "overtaken")


def holding(ticket: int) -> ClientEngine:
    """The training loop has begun `ticket`."""
    engine = ClientEngine()
    assert engine.ready() == [Ready()]
    engine.receive(grant(ticket))
    assert engine.take_grant() == grant(ticket)
    return engine


def committing(ticket: int) -> ClientEngine:
    """The loop commits `ticket`, and is not answered."""
    engine = holding(ticket)
    engine.commit(Commit(ticket))
    return engine


@dataclass
class Coordinator:
    """A simple one: it answers when it is told to, and forgets nothing."""

    tickets: int = 0
    open: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    asked: bool = False

    def receive(self, requests: list[Request]) -> None:
        for request in requests:
            match request:
                case Ready():
                    self.asked = True
                case Abandon(ticket):
                    self.open.discard(ticket)

    def commit(self, commit: Commit) -> None:
        if commit.ticket in self.open:
            self.open.discard(commit.ticket)
            self.committed.add(commit.ticket)
            self.asked = self.asked or commit.ready


class BrokenStreams(RuleBasedStateMachine):
    """What is sent reaches the coordinator, or is lost with the stream; what is owed is sent on the next one.

    A commit travels outside the stream, and is sent until it is answered. The worker's commits and the coordinator's
    agree in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.engine = ClientEngine()
        self.coordinator = Coordinator()
        self.up = True
        self.latest = 0
        self.made: set[int] = set()
        self.fates: dict[int, str] = {}

    def send(self, requests: list[Request]) -> None:
        if self.up:
            self.coordinator.receive(requests)

    @precondition(lambda self: self.engine.held is None)
    @rule()
    def ask(self) -> None:
        self.send(self.engine.ready())
        if self.engine.answered:
            begun = self.engine.take_grant()
            assert begun is not None
            assert begun.ticket > self.latest, "begun twice"
            self.latest = begun.ticket

    @precondition(lambda self: self.up and self.coordinator.asked and not self.coordinator.open)
    @rule()
    def answer(self) -> None:
        self.coordinator.asked = False
        self.coordinator.tickets += 1
        self.coordinator.open.add(self.coordinator.tickets)
        self.engine.receive(grant(self.coordinator.tickets))

    @precondition(lambda self: self.engine.work == "working")
    @rule(ready=st.booleans())
    def commit(self, ready: bool) -> None:
        held = self.engine.held
        assert held is not None
        self.made.add(held)
        self.engine.commit(Commit(held, ready=ready))

    @precondition(lambda self: self.up and self.engine.committing is not None)
    @rule(reached=st.booleans(), answered=st.booleans(), fate=st.sampled_from(FATES))
    def send_commit(self, reached: bool, answered: bool, fate: str) -> None:
        commit = self.engine.committing
        assert commit is not None
        if reached:
            self.coordinator.commit(commit)
        if reached and answered:
            self.engine.answered_commit(commit.ticket, [Disposition(commit.ticket, fate)])

    @precondition(lambda self: self.engine.work == "working")
    @rule()
    def abandon(self) -> None:
        assert self.engine.held is not None
        self.send(self.engine.abandon(self.engine.held, "no use for it"))

    @precondition(lambda self: self.up and self.coordinator.committed)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.coordinator.committed)))
        self.engine.receive(Disposition(ticket, data.draw(st.sampled_from(FATES))))
        for each in self.engine.dispositions():
            assert each.ticket not in self.fates, "settled twice"
            self.fates[each.ticket] = each.fate

    @rule()
    def cut(self) -> None:
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def mend(self) -> None:
        """A new stream: what is owed is sent, and open tickets are granted again."""
        self.up = True
        self.coordinator.receive(self.engine.owed())
        for ticket in self.coordinator.open:
            self.engine.receive(grant(ticket))

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.up:
            on_its_way = self.engine.held if self.engine.committing else None
            assert self.coordinator.committed - {on_its_way} == self.made - {on_its_way}
            assert self.coordinator.open <= {self.coordinator.tickets}

    @invariant()
    def a_request_is_known(self) -> None:
        """An idle worker that asked, and was not answered, has a coordinator that knows."""
        if self.up and self.engine.asked and self.engine.committing is None:
            assert self.coordinator.asked

    @invariant()
    def only_commits_are_settled(self) -> None:
        assert set(self.fates) <= self.made
        assert "pending" not in self.fates.values()


BrokenStreams.TestCase.settings = settings(
    max_examples=repetitions(60, soak=2000), stateful_step_count=30, deadline=None
)
TestBrokenStreams = BrokenStreams.TestCase


def test_what_is_answered_is_not_owed() -> None:
    engine = holding(1)
    commit = Commit(1, ready=True)
    assert engine.commit(commit) == commit and engine.work == "committing"
    assert engine.owed() == [Ready()]
    engine.answered_commit(1, [Disposition(1, "pending"), grant(2)])
    assert engine.owed() == [] and engine.work == "waiting"
    engine.receive(Disposition(1, "applied"))
    assert [each.ticket for each in engine.dispositions()] == [1]
    assert engine.dispositions() == []


def test_a_fate_that_the_stream_tells_first_is_told_once() -> None:
    """The answer that could not be sent came by the session; the commit that is sent again is answered, too."""
    engine = holding(1)
    engine.commit(Commit(1, ready=True))
    engine.receive(Disposition(1, "applied"))
    assert engine.work == "committing"
    engine.answered_commit(1, [Disposition(1, "applied")])
    assert [each.ticket for each in engine.dispositions()] == [1]
    assert engine.owed() == [Ready()]


def test_a_next_grant_that_came_first_is_taken() -> None:
    engine = holding(1)
    engine.commit(Commit(1, ready=True))
    engine.receive(grant(2))
    engine.answered_commit(1, [Disposition(1, "applied"), grant(2)])
    assert engine.ready() == [] and engine.take_grant() == grant(2)


def test_a_ticket_that_a_commit_asked_for_and_was_cancelled_unheard_is_asked_for_again() -> None:
    """Ticket 2 was granted on a stream that broke, and was cancelled before the next one stood. (Crash schedule
    30248354.)"""
    engine = holding(1)
    engine.commit(Commit(1, ready=True))
    assert engine.owed() == [Ready()]
    engine.receive(Disposition(1, "applied", 1))
    engine.receive(Disposition(2, "dropped", reason="cancelled"))
    engine.answered_commit(1, [Disposition(1, "pending")])
    assert engine.work == "waiting" and engine.ready() == []
    engine.receive(grant(3))
    assert engine.take_grant() == grant(3)


def test_a_commit_that_is_taken_back_leaves_the_ticket_in_hand() -> None:
    engine = holding(1)
    engine.commit(Commit(1, ready=True))
    assert engine.take_back(1)
    assert engine.work == "working" and engine.owed() == []
    assert engine.abandon(1, "nonfinite") == [Abandon(1, "nonfinite")]
    assert engine.ready() == [Ready()]


def test_a_cancel_that_crosses_a_commit_leaves_a_void_ticket_in_hand() -> None:
    """Whether the stream or the answer brings the news; the batch is worked on again, and is no contribution."""
    for news in ([cancel(1)], [Disposition(1, "dropped", reason="cancelled")], []):
        engine = holding(1)
        engine.commit(Commit(1, batch=7, ready=True))
        for event in news:
            engine.receive(event)
        assert engine.work == "committing"
        engine.answered_commit(1, [Disposition(1, "dropped", reason="cancelled"), grant(2)])
        assert engine.cancelled and engine.void[1] and engine.dispositions() == []
        assert engine.undone(7) == 0
        assert (
            engine.abandon(1, "cancelled") == [] and engine.ready() == [] and engine.take_grant() == grant(2)
        )


def test_a_cancelled_ticket_is_void_when_its_commit_is_taken_back() -> None:
    engine = holding(5)
    engine.commit(Commit(5))
    engine.receive(cancel(5))
    engine.receive(grant(6))
    assert engine.take_back(5)
    assert engine.cancelled and engine.void == {5: "overtaken"}
    assert engine.abandon(5, "cancelled") == [] and engine.take_grant() == grant(6)


def test_a_ticket_that_was_granted_ahead_is_not_asked_for_again() -> None:
    engine = holding(1)
    assert engine.ready_ahead(1) == [Ready(holding=1)]
    engine.receive(grant(2))
    assert engine.ready_ahead(1) == []
    assert engine.commit(Commit(1, ready=True)) == Commit(1, ready=False)
    engine.answered_commit(1, [Disposition(1, "pending")])
    assert engine.ready() == []
    assert engine.take_grant() == grant(2)


def test_a_commit_does_not_ask_for_a_ticket_that_will_be_granted_ahead() -> None:
    """Its version would come with the answer, and once more to the thread that fetches ahead."""
    engine = holding(1)
    engine.ready_ahead(1)
    assert engine.commit(Commit(1, ready=True)).ready
    engine.receive(grant(2))
    engine.answered_commit(1, [Disposition(1, "pending")])
    assert engine.ready() == []
    engine.take_grant()
    engine.ready_ahead(2)
    assert not engine.commit(Commit(2, ready=True)).ready
    engine.answered_commit(2, [Disposition(2, "pending")])
    # The policy grants nothing ahead any more: the loop asks, and the next commit does.
    assert engine.ready() == [Ready()]
    engine.receive(grant(3))
    engine.take_grant()
    engine.ready_ahead(3)
    assert engine.commit(Commit(3, ready=True)).ready


def test_a_ticket_that_nobody_asked_for_ahead_says_nothing_about_the_policy() -> None:
    engine = holding(1)
    engine.ready_ahead(1)
    engine.receive(grant(2))
    engine.abandon(1, "nonfinite")
    engine.take_grant()
    engine.abandon(2, "nonfinite")
    assert engine.ready() == [Ready()]
    engine.receive(grant(3))
    engine.take_grant()
    engine.ready_ahead(3)
    assert not engine.commit(Commit(3, ready=True)).ready


def test_a_ticket_that_was_granted_ahead_and_cancelled_is_asked_for_again() -> None:
    engine = holding(1)
    engine.receive(grant(2))
    engine.receive(cancel(2))
    assert engine.work == "working"
    # Whoever waits for it learns that it is void; whoever asks gets another one.
    assert engine.after(1) == grant(2)
    assert engine.ready_ahead(1) == [Ready(holding=1)]
    assert not engine.commit(Commit(1, ready=True)).ready
    engine.answered_commit(1, [Disposition(1, "pending")])
    assert engine.ready() == [Ready()]


def test_a_grant_that_is_taken_back_at_once_is_asked_for_again() -> None:
    engine = ClientEngine()
    engine.ready()
    engine.receive(grant(1))
    engine.receive(cancel(1))
    assert not engine.answered and not engine.asked
    assert engine.ready() == [Ready()]


def test_another_incarnation_owes_nothing_of_the_old_ones_tickets() -> None:
    engine = holding(1)
    engine.commit(Commit(1))
    engine.answered_commit(1, [Disposition(1, "pending")])
    engine.ready()
    engine.receive(grant(2))
    engine.take_grant()
    engine.renew("lost")
    assert [(each.ticket, each.fate) for each in engine.dispositions()] == [(1, "unknown")]
    assert engine.void[2] == "lost" and engine.cancelled
    assert engine.owed() == []
    # The void ticket is no reason not to ask.
    assert engine.ready() == [Ready()]


@pytest.mark.parametrize(("fatal", "kind"), [(True, Refused), (False, SessionError)])
def test_a_refusal_is_raised(fatal: bool, kind: type[SessionError]) -> None:
    engine = holding(1)
    engine.commit(Commit(1))
    engine.answered_commit(1, [Refusal("no", fatal, ticket=1)])
    assert engine.answered
    assert type(engine.error) is kind
    with pytest.raises(kind, match="no"):
        engine.ready()
    assert engine.owed() == []


@pytest.mark.parametrize("last", [Refusal("no", fatal=True), Stop("enough", 3, True, 9)])
def test_nothing_is_asked_for_ahead_after_the_end(last: Refusal | Stop) -> None:
    engine = holding(1)
    engine.receive(last)
    assert engine.ready_ahead(1) == []
    assert engine.report(3, {}) == [Report(3, {})] and engine.leave("finished") == [Leave("finished")]


def test_a_report_is_sent_once() -> None:
    engine = ClientEngine()
    engine.report(3, {"loss": 1.0})
    assert engine.owed() == []


def test_after_the_stop_the_loop_ends_what_it_has_in_hand() -> None:
    engine = holding(1)
    engine.receive(Stop("enough", 3, True, 9))
    assert engine.ready() == [] and engine.take_grant() is None
    assert engine.commit(Commit(1)) == Commit(1)
    engine.answered_commit(1, [Disposition(1, "dropped")])
    assert engine.report(3, {"loss": 1.0}) == [Report(3, {"loss": 1.0})]
    assert engine.leave("finished") == [Leave("finished")]


def test_what_was_sent_last_is_owed_last() -> None:
    engine = holding(1)
    engine.abandon(1, "no use for it")
    engine.done()
    engine.leave("finished")
    assert engine.owed() == [Abandon(1, "no use for it"), Done(), Leave("finished")]


def test_over_a_link_that_loses_nothing_nothing_is_owed() -> None:
    engine = ClientEngine(lossless_link=True)
    for ticket in range(1, 1000):
        engine.ready()
        engine.receive(grant(ticket))
        engine.take_grant()
        engine.commit(Commit(ticket)) if ticket % 2 else engine.abandon(ticket, "no use for it")
    pending = engine.pending
    assert not (pending.awaited or pending.abandons)


@pytest.mark.parametrize(
    ("made", "action"),
    [
        (lambda: holding(1), ClientEngine.ready),
        (ClientEngine, ClientEngine.take_grant),
        (lambda: holding(7), lambda engine: engine.commit(Commit(1))),
        (lambda: committing(1), lambda engine: engine.commit(Commit(1))),
        (lambda: holding(7), lambda engine: engine.abandon(1, "no use for it")),
        (lambda: committing(1), ClientEngine.done),
    ],
    ids=["ready", "take_grant", "commit another", "commit again", "abandon another", "done"],
)
def test_an_input_that_does_not_fit_changes_nothing(
    made: Callable[[], ClientEngine], action: Callable[[ClientEngine], object]
) -> None:
    engine = made()
    before = deepcopy(vars(engine))
    before["pending"] = vars(before["pending"])
    with pytest.raises(SessionError, match=f"while {engine.work}"):
        action(engine)
    assert {**vars(engine), "pending": vars(engine.pending)} == before


# Another membership, where batches have numbers


def test_a_ticket_that_another_membership_has_made_void_is_in_hand_until_it_is_given_up() -> None:
    engine = holding(5)
    engine.renew("lost", 0)
    assert engine.cancelled and engine.void[5] == "lost"
    assert engine.abandon(5, "cancelled") == [] and engine.ready() == [Ready()]


def test_so_is_one_whose_commit_did_not_count() -> None:
    engine = holding(5)
    engine.commit(Commit(5, batch=3))
    engine.renew("lost", 3)
    assert engine.take_back(5) and engine.cancelled and engine.void[5] == "lost"
    engine.answered_commit(5, [Disposition(5, "applied"), grant(6)])
    assert not engine.grants, "an answer to the former member"
    assert engine.abandon(5, "cancelled") == []
    # It was committed by nobody.
    assert engine.undone(3) == 0


def test_a_loop_that_can_is_told_to_go_back() -> None:
    engine = holding(1)
    engine.commit(Commit(1, batch=7, ready=True))
    engine.answered_commit(1, [Disposition(1, "applied")])
    assert engine.undone(5) == 3
    assert engine.renew("went back", 5, again=True) == 3
    assert engine.answered and engine.owed() == [] and engine.ready() == [] and engine.done() == []
    assert engine.take_rollback() and not engine.take_rollback()
    assert engine.ready() == [Ready()]


def test_one_that_was_done_is_not_done_any_more() -> None:
    engine = ClientEngine()
    engine.done()
    engine.renew("went back", 0, again=True)
    assert engine.take_rollback() and engine.work == "idle"


def test_initial_values_are_no_batch() -> None:
    engine = ClientEngine()
    engine.ready()
    engine.receive(Grant(1, version=0, index=1, initialise=True))
    engine.take_grant()
    engine.commit(Commit(1))
    assert engine.undone(0) == 0


@pytest.mark.parametrize("told", [[], [Disposition(5, "applied", version=1)]])
@pytest.mark.parametrize(("next_batch", "counts"), [(3, False), (4, True)])
def test_another_membership_says_whether_an_unanswered_commit_counted(
    next_batch: int, counts: bool, told: list[Disposition]
) -> None:
    engine = holding(5)
    engine.commit(Commit(5, batch=3))
    for event in told:
        engine.receive(event)
    for reason in ("lost", "lost again"):
        engine.renew(reason, next_batch)
    assert engine.take_back(5) != counts and engine.undone(next_batch) == 0


def test_initial_values_of_which_the_answer_was_lost_are_no_error() -> None:
    engine = ClientEngine()
    engine.ready()
    engine.receive(Grant(1, version=0, index=1, initialise=True))
    engine.take_grant()
    engine.commit(Commit(1))
    engine.renew("lost", 0)
    assert not engine.take_back(1) and engine.ready() == [Ready()]
