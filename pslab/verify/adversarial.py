"""Messages that must change nothing: sent again, of the past, of unknown sessions and with false claims."""

from dataclasses import dataclass

from pslab.verify.invariants import Guard, expect
from pslab.verify.schedules.choices import ChoiceSource
from pslab.verify.schedules.time_limit import TimeLimitedPolicy
from psserver.coordinator import Coordinator, Send
from pswire import protocol

NOBODY = "w9"


@dataclass(frozen=True)
class Adversary:
    """Each method sends one such message at `now`, as `choices` say. Raises InvariantViolation."""

    coordinator: Coordinator
    choices: ChoiceSource
    now: float
    guard: Guard

    def join_again(self, worker: str) -> None:
        """The same process joins once more: nothing changes."""
        coordinator = self.coordinator
        member = coordinator.roster.present.get(worker)
        if member is not None and coordinator.stopped is None:
            before = coordinator.entries
            same, outputs = coordinator.join(worker, member.session, member.rank, self.now)
            expect(
                same is member and not outputs and coordinator.entries == before,
                f"{worker} joined once more, and something changed: {outputs}",
            )

    def repeat(self, worker: str) -> None:
        """A message of the past arrives again: it is answered, and counts for nothing."""
        coordinator = self.coordinator
        settled = coordinator.tickets.recent_of(worker)
        member = coordinator.roster.present.get(worker)
        if not settled or member is None:
            return
        ticket = settled[self.choices.pick(len(settled))]
        before = coordinator.entries
        who, now = (worker, member.incarnation), self.now
        if self.choices.pick(2):
            outputs = coordinator.handle(*who, protocol.Commit(ticket.number, samples=5, loss=9.0), now)
            sent = [o.notice for o in outputs if isinstance(o, Send)]
            expect(sent == [ticket.fate], f"{worker} commits {ticket.number} again and receives {sent}")
        else:
            outputs = coordinator.handle(*who, protocol.Abandon(ticket.number, "late"), now)
            expect(outputs == [], f"{worker} abandons {ticket.number}, which is settled: {outputs}")
        expect(coordinator.entries == before, "what is settled is decided upon again")
        self.guard.compare(coordinator)

    def lie(self, worker: str, incarnation: int) -> None:
        """What must be refused is refused, with a sentence, and changes nothing at all.

        `incarnation`: that of the worker's process, which is another one's if it is not a member.
        """
        coordinator, pick, now = self.coordinator, self.choices.pick, self.now
        member = coordinator.roster.present.get(worker)
        incarnation = member.incarnation if member else incarnation
        foreign = [t.number for t in coordinator.tickets.live.values() if t.worker != worker]
        ticket = foreign[pick(len(foreign))] if foreign and pick(2) else 10**6 + pick(3)
        worker = (worker, NOBODY)[pick(2)] if member else worker
        if pick(2) or member is None:
            incarnation += 1 + pick(2)
        before = state(coordinator)
        match pick(4):
            case 0 if worker == NOBODY or member is None or incarnation != member.incarnation:
                outputs = coordinator.handle(worker, incarnation, protocol.Ready(), now)
            case 1 if worker == NOBODY or member is None or incarnation != member.incarnation:
                outputs = coordinator.handle(worker, incarnation, protocol.Done(), now)
            case 2:
                outputs = coordinator.handle(worker, incarnation, protocol.Abandon(ticket, "lie"), now)
            case _:
                outputs = coordinator.handle(worker, incarnation, protocol.Commit(ticket, samples=10**6), now)
        refusals = [
            o.notice for o in outputs if isinstance(o, Send) and isinstance(o.notice, protocol.Refusal)
        ]
        expect(
            len(outputs) == len(refusals) == 1, f"an unknown session is not refused exactly once: {outputs}"
        )
        expect(bool(refusals[0].message), "a refusal says nothing")
        expect(state(coordinator) == before, "a message of an unknown session changed something")


def state(coordinator: Coordinator) -> str:
    """All that a coordinator remembers, as text, and how often its policy was asked."""
    c = coordinator
    people = (c.roster.present, c.roster.tallies, c.roster.unfinished)
    tickets = (c.tickets.next_number, c.tickets.live, c.tickets.settled)
    events = c.policy.events if isinstance(c.policy, TimeLimitedPolicy) else None
    rest = (c.version, c.initialised, c.started, c.stopped, c.loss, c.entries, events)
    return repr((people, tickets, rest))
