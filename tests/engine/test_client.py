"""What a session owes: nothing that was sent is lost on a broken stream, nothing that was answered is sent again."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from psworker.engine import (
    LEGAL,
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
    legal,
)
from psworker.errors import IllegalInput, Refused, SessionError, Voided
from tests.repetitions import repetitions
from tests.sentences import Recorder

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


def facts_of(engine: ClientEngine) -> dict[str, Any]:
    """All that it knows but for what is remembered of exchanges, from which no message follows."""
    facts = {**vars(engine), "pending": vars(engine.pending)}
    for name in ("in_exchange", "asked_ahead", "granted_ahead"):
        del facts[name]
    return deepcopy(facts)


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
                case Commit(ticket, ready=ready):
                    if ticket in self.open:
                        self.open.discard(ticket)
                        self.committed.add(ticket)
                        self.asked = self.asked or ready
                case Abandon(ticket):
                    self.open.discard(ticket)


class BrokenStreams(RuleBasedStateMachine):
    """What is sent reaches the coordinator, or is lost with the stream; what is owed is sent on the next one.

    The worker's commits and the coordinator's agree in the end.
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

    @precondition(lambda self: self.engine.held is not None)
    @rule(ready=st.booleans())
    def commit(self, ready: bool) -> None:
        held = self.engine.held
        assert held is not None
        self.made.add(held)
        self.send(self.engine.commit(Commit(held, ready=ready)))

    @precondition(lambda self: self.engine.held is not None)
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
            assert self.coordinator.committed == self.made
            assert self.coordinator.open <= {self.coordinator.tickets}

    @invariant()
    def a_request_is_known(self) -> None:
        """An idle worker that asked, and was not answered, has a coordinator that knows."""
        if self.up and self.engine.asked:
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
    assert engine.commit(commit) == [commit]
    assert engine.owed() == [commit, Ready()]
    engine.receive(Disposition(1, "pending"))
    engine.receive(grant(2))
    assert engine.owed() == []
    engine.receive(Disposition(1, "applied"))
    assert [each.ticket for each in engine.dispositions()] == [1]
    assert engine.dispositions() == []


def test_a_commit_that_was_answered_while_its_exchange_was_lost_is_not_made_again() -> None:
    """The answer that could not be sent by the exchange came by the session; each fate is returned once."""
    engine = holding(1)
    commit = engine.begin_commit(Commit(1, ready=True))
    engine.receive(Disposition(1, "applied"))
    assert engine.commit(commit) == [Ready()]
    engine.receive(Disposition(1, "applied"))
    assert [each.ticket for each in engine.dispositions()] == [1]
    assert engine.owed() == [Ready()]


def test_a_cancel_that_was_lost_with_the_exchange_does_not_end_the_asking() -> None:
    """After a reconnection the ticket's fate is told, which ends the commit; its `ready` never arrived."""
    engine = holding(1)
    commit = engine.begin_commit(Commit(1, ready=True))
    engine.receive(Disposition(1, "dropped", reason="cancelled"))
    assert engine.commit(commit) == [Ready()] and engine.work == "waiting"


def test_a_commit_that_was_answered_is_spoken_of_once(sentences: Recorder) -> None:
    for end in (lambda e: e.commit(Commit(1)), lambda e: e.ready(), lambda e: e.done()):
        engine = holding(1)
        engine.begin_commit(Commit(1))
        engine.receive(Disposition(1, "dropped", reason="cancelled"))
        end(engine)
        before = facts_of(engine)
        for again in (lambda e: e.commit(Commit(1)), lambda e: e.rollback_commit(1)):
            with pytest.raises(IllegalInput) as refused:
                again(engine)
            sentences.check(refused)
        assert facts_of(engine) == before


def test_a_next_grant_that_came_first_is_not_asked_for() -> None:
    engine = holding(1)
    commit = engine.begin_commit(Commit(1, ready=True))
    engine.receive(Disposition(1, "applied"))
    engine.receive(grant(2))
    assert engine.commit(commit) == [] and engine.take_grant() == grant(2)


def test_a_commit_that_an_exchange_makes_is_left_to_it() -> None:
    """Sent by a session that comes back meanwhile, before the payload is there, it would be refused for good."""
    engine = holding(1)
    commit = engine.begin_commit(Commit(1, ready=True))
    assert engine.work == "committing" and engine.owed() == [Ready()]
    engine.commit(commit)
    assert engine.owed() == [commit, Ready()]


def test_a_ticket_that_an_exchange_asked_for_and_nobody_heard_of_is_asked_for_again() -> None:
    """Ticket 2 was granted on a stream that broke, and was cancelled before the next one stood; the exchange's answer
    is still on its way then. (Crash schedule 30248354.)"""
    engine = holding(1)
    engine.begin_commit(Commit(1, ready=True))
    assert engine.owed() == [Ready()]
    engine.receive(Disposition(1, "applied", 1))
    engine.receive(Disposition(2, "dropped", reason="cancelled"))
    engine.receive(Disposition(1, "pending"))
    assert engine.work == "waiting" and engine.ready() == []
    engine.receive(grant(3))
    assert engine.take_grant() == grant(3)


def test_a_commit_that_was_not_answered_is_made_again() -> None:
    engine = holding(1)
    commit = engine.begin_commit(Commit(1, ready=True))
    assert engine.commit(commit) == [commit]


def test_a_commit_that_is_rolled_back_leaves_the_ticket_in_hand() -> None:
    engine = holding(1)
    engine.begin_commit(Commit(1, ready=True))
    engine.rollback_commit(1)
    assert engine.work == "working" and engine.owed() == []
    assert engine.abandon(1, "nonfinite") == [Abandon(1, "nonfinite")]
    assert engine.ready() == [Ready()]


def test_a_ticket_that_is_cancelled_while_its_commit_is_made_is_cancelled_when_that_is_rolled_back() -> None:
    engine = holding(1)
    engine.begin_commit(Commit(1))
    engine.receive(cancel(1))
    assert engine.work == "committing"
    engine.rollback_commit(1)
    assert engine.work == "cancelled" and engine.abandon(1, "cancelled") == []


def test_a_cancel_during_an_exchange_is_remembered_when_the_next_ticket_is_granted() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5))
    engine.receive(cancel(5))
    engine.receive(grant(6))
    engine.rollback_commit(5)
    assert engine.work == "cancelled" and engine.void == {5: "overtaken"}
    assert engine.abandon(5, "cancelled") == [] and engine.take_grant() == grant(6)


def test_a_ticket_of_the_former_incarnation_is_cancelled_when_its_commit_is_rolled_back() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5))
    engine.renew("lost")
    engine.receive(grant(6))
    engine.rollback_commit(5)
    assert engine.work == "cancelled" and engine.void == {5: "lost"}


def test_a_ticket_whose_fate_came_first_is_cancelled_when_its_commit_is_rolled_back() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5, ready=True))
    engine.receive(Disposition(5, "dropped", reason="cancelled"))
    engine.rollback_commit(5)
    assert engine.work == "cancelled"
    assert engine.ready() == [Ready()]
    assert [each.fate for each in engine.dispositions()] == ["dropped"]


def test_a_commit_to_a_cancelled_ticket_is_not_sent() -> None:
    engine = holding(1)
    engine.receive(cancel(1))
    assert engine.void[1] == "overtaken"
    assert engine.commit(Commit(1, ready=True)) == [Ready()]
    assert engine.owed() == [Ready()]
    assert [(each.ticket, each.cancelled) for each in engine.dispositions()] == [(1, True)]


def test_a_ticket_that_was_granted_ahead_is_not_asked_for_again() -> None:
    engine = holding(1)
    assert engine.ready_ahead(1) == [Ready(holding=1)]
    engine.receive(grant(2))
    assert engine.ready_ahead(1) == []
    assert engine.commit(Commit(1, ready=True)) == [Commit(1, ready=False)]
    assert engine.ready() == []
    assert engine.take_grant() == grant(2)


def test_an_exchange_does_not_ask_for_a_ticket_that_will_be_granted_ahead() -> None:
    """Its version would come with the answer, and once more to the thread that fetches ahead."""
    engine = holding(1)
    engine.ready_ahead(1)
    assert engine.begin_commit(Commit(1, ready=True)).ready
    engine.receive(grant(2))
    engine.end_exchange()
    engine.receive(Disposition(1, "pending"))
    assert engine.ready() == []
    engine.take_grant()
    engine.ready_ahead(2)
    assert not engine.begin_commit(Commit(2, ready=True)).ready
    engine.end_exchange()
    engine.receive(Disposition(2, "pending"))
    # The policy grants nothing ahead any more: the loop asks, and the next commit does.
    assert engine.ready() == [Ready()]
    engine.receive(grant(3))
    engine.take_grant()
    engine.ready_ahead(3)
    assert engine.begin_commit(Commit(3, ready=True)).ready


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
    assert not engine.begin_commit(Commit(3, ready=True)).ready


def test_a_ticket_that_was_granted_ahead_and_cancelled_is_asked_for_again() -> None:
    engine = holding(1)
    engine.receive(grant(2))
    engine.receive(cancel(2))
    assert engine.after(1) is None and engine.work == "working"
    assert engine.ready_ahead(1) == [Ready(holding=1)]
    assert engine.commit(Commit(1, ready=True)) == [Commit(1, ready=True)]


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
    engine.ready()
    engine.receive(grant(2))
    engine.take_grant()
    engine.renew("lost")
    assert [(each.ticket, each.fate) for each in engine.dispositions()] == [(1, "unknown")]
    assert engine.void[2] == "lost" and engine.work == "cancelled"
    assert engine.owed() == []
    # The void ticket is no reason not to ask.
    assert engine.ready() == [Ready()]


def test_ready_while_a_ticket_is_open_is_a_mistake(sentences: Recorder) -> None:
    with pytest.raises(IllegalInput) as refused:
        holding(1).ready()
    sentences.check(refused)


@pytest.mark.parametrize(("fatal", "kind"), [(True, Refused), (False, SessionError)])
def test_a_refusal_is_raised(fatal: bool, kind: type[SessionError]) -> None:
    engine = holding(1)
    engine.commit(Commit(1))
    engine.receive(Refusal("no", fatal, ticket=1))
    assert engine.answered
    assert type(engine.error) is kind
    with pytest.raises(kind, match="no"):
        engine.ready()
    assert engine.owed() == ([Commit(1)] if fatal else [])


@pytest.mark.parametrize("name", LEGAL)
def test_after_a_refusal_the_inputs_of_the_table_raise_it(name: str) -> None:
    for state in sorted(LEGAL[name]):
        engine = in_state(state)
        engine.receive(Refusal("no", fatal=True))
        if name == "rollback_commit":
            # Called while the exchange's error is handled, which is the one to be raised.
            engine.rollback_commit(1)
            assert engine.held == 1
            continue
        before = facts_of(engine)
        with pytest.raises(Refused, match="no"):
            INPUTS[name](engine, True)
        assert facts_of(engine) == before


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
    assert engine.commit(Commit(1)) == [Commit(1)]
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
    assert not (pending.commits or pending.awaited or pending.abandons)


# The table


def in_state(state: str) -> ClientEngine:
    """An engine in that state; the ticket in question is 1."""
    if state in ("working", "cancelled", "committing"):
        engine = holding(1)
        if state == "cancelled":
            engine.receive(cancel(1))
        elif state == "committing":
            engine.begin_commit(Commit(1))
        return engine
    engine = ClientEngine()
    if state in ("waiting", "granted"):
        engine.ready()
    if state == "granted":
        engine.receive(grant(1))
    if state == "exhausted":
        engine.done()
    return engine


INPUTS = {
    "ready": lambda e, ready: e.ready(),
    "take_grant": lambda e, ready: e.take_grant(),
    "begin_commit": lambda e, ready: e.begin_commit(Commit(1, ready=ready)),
    "rollback_commit": lambda e, ready: e.rollback_commit(1),
    "commit": lambda e, ready: e.commit(Commit(1, ready=ready)),
    "abandon": lambda e, ready: e.abandon(1, "no use for it"),
    "done": lambda e, ready: e.done(),
}


def documented() -> dict[tuple[str, str], str]:
    """(input, state) -> what the table in the module's docstring says."""
    lines = (legal.__doc__ or "").splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:1] == ["input"])
    states = lines[head].split()[1:]
    found: dict[tuple[str, str], str] = {}
    for line in lines[head + 1 : head + 8]:
        name, *cells = line.split()
        if name == "done":
            cells = ["-" if state == "committing" else "exhausted" for state in states]
        assert len(cells) == len(states), line
        found.update({(name, state): cell for state, cell in zip(states, cells, strict=True)})
    return found


@pytest.mark.parametrize(
    "state", ["idle", "waiting", "granted", "working", "cancelled", "committing", "exhausted"]
)
@pytest.mark.parametrize("name", INPUTS)
def test_the_table_is_what_the_engine_does(name: str, state: str, sentences: Recorder) -> None:
    """An illegal input is named with the state, and changes nothing."""
    outcome = documented()[name, state]
    assert (outcome != "-") == (state in LEGAL[name])
    engine = in_state(state)
    assert engine.work == state
    before = facts_of(engine)
    if outcome == "-":
        with pytest.raises(IllegalInput) as refused:
            INPUTS[name](engine, True)
        sentences.check(refused)
        assert facts_of(engine) == before
        return
    INPUTS[name](engine, True)
    assert engine.work == outcome.rstrip("*")
    if outcome.endswith("**"):
        engine = in_state(state)
        INPUTS[name](engine, False)
        assert engine.work == "idle"
    if outcome.endswith("*") and state != "committing":
        engine = in_state(state)
        engine.receive(grant(2))
        if state == "cancelled":
            assert engine.work == "cancelled"
        INPUTS[name](engine, True)
        assert engine.work == "granted"


@pytest.mark.parametrize("name", ["begin_commit", "commit", "abandon"])
def test_another_ticket_than_the_one_in_hand_is_a_mistake(name: str, sentences: Recorder) -> None:
    engine = holding(7)
    with pytest.raises(IllegalInput) as refused:
        INPUTS[name](engine, True)
    sentences.check(refused)
    assert facts_of(engine) == facts_of(holding(7))


# Another membership, where batches have numbers


def test_a_commit_of_a_ticket_that_another_membership_has_made_void_is_worked_on_again(
    sentences: Recorder,
) -> None:
    engine = holding(5)
    engine.renew("lost", 0)
    with pytest.raises(Voided) as refused:
        engine.commit(Commit(5))
    sentences.check(refused)
    assert engine.abandon(5, "cancelled") == [] and engine.ready() == [Ready()]


def test_so_is_one_whose_exchange_was_cut_off() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5, batch=3))
    engine.renew("lost", 3)
    with pytest.raises(Voided):
        engine.commit(Commit(5, batch=3))
    assert engine.work == "cancelled" and engine.abandon(5, "cancelled") == []
    # It was committed by nobody.
    assert engine.undone(3) == 0


def test_a_loop_that_can_is_told_to_go_back() -> None:
    engine = holding(1)
    engine.commit(Commit(1, batch=7, ready=True))
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


def test_a_commit_that_counts_although_its_answer_was_lost_is_not_worked_on_again() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5, batch=3))
    engine.renew("lost", 4)
    assert engine.commit(Commit(5, batch=3)) == [] and engine.undone(4) == 0


def test_nor_is_one_whose_fate_the_stream_has_told() -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5, batch=3))
    engine.receive(Disposition(5, "applied", version=1))
    engine.renew("lost", 4)
    assert engine.commit(Commit(5, batch=3)) == []
    engine = holding(5)
    engine.begin_commit(Commit(5, batch=3))
    engine.receive(Disposition(5, "applied", version=1))
    engine.renew("went back", 2, again=True)
    with pytest.raises(Voided):
        engine.commit(Commit(5, batch=3))


@pytest.mark.parametrize(("next_batch", "counts"), [(3, False), (4, True)])
def test_whether_it_counts_does_not_change_with_another_membership(next_batch: int, counts: bool) -> None:
    engine = holding(5)
    engine.begin_commit(Commit(5, batch=3))
    for reason in ("lost", "lost again"):
        engine.renew(reason, next_batch)
    if counts:
        assert engine.commit(Commit(5, batch=3)) == []
    else:
        with pytest.raises(Voided):
            engine.commit(Commit(5, batch=3))


def test_initial_values_that_came_too_late_are_no_error() -> None:
    engine = ClientEngine()
    engine.ready()
    engine.receive(Grant(1, version=0, index=1, initialise=True))
    engine.take_grant()
    engine.renew("lost", 0)
    assert engine.commit(Commit(1)) == [] and engine.ready() == [Ready()]
