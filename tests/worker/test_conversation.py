"""What a session owes: nothing that was said is lost on a broken stream, nothing that was answered is said again."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pswire.v1 import coordinator_pb2 as pb
from psworker.control.protocol import Requests, SessionProtocol
from psworker.errors import Refused, SessionError
from tests.repetitions import repetitions

FATES = [pb.Disposition.FATE_APPLIED, pb.Disposition.FATE_DROPPED, pb.Disposition.FATE_PENDING]


def grant(ticket: int) -> pb.SessionEvent:
    return pb.SessionEvent(grant=pb.Grant(ticket=ticket))


def cancel(ticket: int) -> pb.SessionEvent:
    return pb.SessionEvent(cancel=pb.Cancel(ticket=ticket, reason="overtaken"))


def disposition(ticket: int, fate: "pb.Disposition.Fate.ValueType") -> pb.SessionEvent:
    return pb.SessionEvent(disposition=pb.Disposition(ticket=ticket, fate=fate))


def holding(ticket: int) -> SessionProtocol:
    """The training loop has begun `ticket`."""
    talk = SessionProtocol()
    assert [request.WhichOneof("message") for request in talk.ask()] == ["ready"]
    talk.hear(grant(ticket))
    begun = talk.begin()
    assert begun is not None and begun.ticket == ticket
    return talk


@dataclass
class Coordinator:
    """A dumb one: it answers when it is told to, and forgets nothing."""

    tickets: int = 0
    open: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    asked: bool = False

    def told(self, requests: Requests) -> None:
        for request in requests:
            match request.WhichOneof("message"):
                case "ready":
                    self.asked = True
                case "commit":
                    if request.commit.ticket in self.open:
                        self.open.discard(request.commit.ticket)
                        self.committed.add(request.commit.ticket)
                        self.asked = self.asked or request.commit.ready
                case "abandon":
                    self.open.discard(request.abandon.ticket)


class BrokenLines(RuleBasedStateMachine):
    """What is said reaches the coordinator, or is lost with the stream; what is owed is said on the next one.

    The worker's commits and the coordinator's agree in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.talk = SessionProtocol()
        self.coordinator = Coordinator()
        self.up = True
        self.held: int | None = None
        self.latest = 0
        self.made: set[int] = set()
        self.told: dict[int, str] = {}

    def say(self, requests: Requests) -> None:
        if self.up:
            self.coordinator.told(requests)

    @precondition(lambda self: self.held is None)
    @rule()
    def ask(self) -> None:
        self.say(self.talk.ask())
        if self.talk.answered:
            begun = self.talk.begin()
            assert begun is not None
            assert begun.ticket > self.latest, "begun twice"
            self.held = self.latest = begun.ticket

    @precondition(lambda self: self.up and self.coordinator.asked and not self.coordinator.open)
    @rule()
    def answer(self) -> None:
        self.coordinator.asked = False
        self.coordinator.tickets += 1
        self.coordinator.open.add(self.coordinator.tickets)
        self.talk.hear(grant(self.coordinator.tickets))

    @precondition(lambda self: self.held is not None)
    @rule(ready=st.booleans())
    def commit(self, ready: bool) -> None:
        assert self.held is not None
        self.made.add(self.held)
        self.say(self.talk.commit(pb.Commit(ticket=self.held, ready=ready)))
        self.held = None

    @precondition(lambda self: self.held is not None)
    @rule()
    def abandon(self) -> None:
        assert self.held is not None
        self.say(self.talk.abandon(self.held, "mood"))
        self.held = None

    @precondition(lambda self: self.up and self.coordinator.committed)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.coordinator.committed)))
        self.talk.hear(disposition(ticket, data.draw(st.sampled_from(FATES))))
        for each in self.talk.dispositions():
            assert each.ticket not in self.told, "told twice"
            self.told[each.ticket] = each.fate

    @rule()
    def cut(self) -> None:
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def mend(self) -> None:
        """A new stream: open tickets that were not begun are granted again, and what is owed is said."""
        self.up = True
        self.coordinator.told(self.talk.owed())
        for ticket in self.coordinator.open:
            self.talk.hear(grant(ticket))

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.up:
            assert self.coordinator.committed == self.made
            assert self.coordinator.open <= {self.coordinator.tickets}

    @invariant()
    def callers_get_their_answers(self) -> None:
        """An idle worker that asked, and was not answered, has a coordinator that knows."""
        if self.up and self.talk.asked:
            assert self.coordinator.asked

    @invariant()
    def what_is_told_was_made(self) -> None:
        assert set(self.told) <= self.made
        assert "pending" not in self.told.values()


BrokenLines.TestCase.settings = settings(
    max_examples=repetitions(60, soak=2000), stateful_step_count=30, deadline=None
)
TestBrokenLines = BrokenLines.TestCase


def test_what_is_answered_is_not_owed() -> None:
    talk = holding(1)
    talk.commit(pb.Commit(ticket=1, ready=True))
    assert [request.WhichOneof("message") for request in talk.owed()] == ["commit", "ready"]
    talk.hear(disposition(1, pb.Disposition.FATE_PENDING))
    talk.hear(grant(2))
    assert talk.owed() == []
    talk.hear(disposition(1, pb.Disposition.FATE_APPLIED))
    assert [each.ticket for each in talk.dispositions()] == [1]
    assert talk.dispositions() == []


def test_a_commit_that_was_answered_while_its_exchange_was_lost_is_not_made_again() -> None:
    """The answer that could not be sent by the exchange came by the session; each fate is told once."""
    talk = holding(1)
    message = pb.Commit(ticket=1, ready=True)
    talk.expect(message)
    talk.hear(disposition(1, pb.Disposition.FATE_APPLIED))
    assert talk.commit(message) == []
    talk.hear(disposition(1, pb.Disposition.FATE_APPLIED))
    assert [each.ticket for each in talk.dispositions()] == [1]
    assert [request.WhichOneof("message") for request in talk.owed()] == ["ready"]


def test_a_commit_that_an_exchange_makes_is_left_to_it() -> None:
    """Said by a session that comes back meanwhile, before the payload is there, it would be refused for good."""
    talk = holding(1)
    message = pb.Commit(ticket=1, ready=True)
    talk.expect(message)
    assert talk.owed() == []
    talk.commit(message)
    assert [request.WhichOneof("message") for request in talk.owed()] == ["commit", "ready"]


def test_a_commit_that_was_not_answered_is_made_again() -> None:
    talk = holding(1)
    message = pb.Commit(ticket=1, ready=True)
    talk.expect(message)
    (said,) = talk.commit(message)
    assert said.commit.ticket == 1


def test_a_commit_to_a_cancelled_ticket_is_not_said() -> None:
    talk = holding(1)
    talk.hear(cancel(1))
    assert talk.void(1) == "overtaken"
    said = talk.commit(pb.Commit(ticket=1, ready=True))
    assert [request.WhichOneof("message") for request in said] == ["ready"]
    assert [request.WhichOneof("message") for request in talk.owed()] == ["ready"]


def test_a_ticket_that_was_granted_ahead_is_not_asked_for_again() -> None:
    talk = holding(1)
    (request,) = talk.ask_ahead(1)
    assert request.ready.holding == 1
    talk.hear(grant(2))
    assert talk.ask_ahead(1) == []
    (said,) = talk.commit(pb.Commit(ticket=1, ready=True))
    assert not said.commit.ready
    assert talk.ask() == []
    begun = talk.begin()
    assert begun is not None and begun.ticket == 2


def test_a_grant_that_is_taken_back_at_once_is_asked_for_again() -> None:
    talk = SessionProtocol()
    talk.ask()
    talk.hear(grant(1))
    talk.hear(cancel(1))
    assert not talk.answered and not talk.asked
    assert [request.WhichOneof("message") for request in talk.ask()] == ["ready"]


def test_another_incarnation_owes_nothing_of_the_old_ones_tickets() -> None:
    talk = holding(1)
    talk.commit(pb.Commit(ticket=1))
    talk.ask()
    talk.hear(grant(2))
    talk.begin()
    talk.given_up("lost")
    assert [(each.ticket, each.fate) for each in talk.dispositions()] == [(1, "unknown")]
    assert talk.void(2) == "lost"
    assert talk.owed() == []
    # The void ticket is no reason not to ask.
    assert [request.WhichOneof("message") for request in talk.ask()] == ["ready"]


def test_ready_while_a_ticket_is_open_is_a_mistake() -> None:
    with pytest.raises(SessionError, match="ready while ticket 1 is open"):
        holding(1).ask()


@pytest.mark.parametrize(("fatal", "kind"), [(True, Refused), (False, SessionError)])
def test_a_refusal_is_raised(fatal: bool, kind: type[SessionError]) -> None:
    talk = holding(1)
    talk.commit(pb.Commit(ticket=1))
    talk.hear(pb.SessionEvent(refusal=pb.Refusal(ticket=1, fatal=fatal, message="no")))
    assert talk.answered
    with pytest.raises(kind, match="no"):
        talk.raise_error()
