"""Messages that must change nothing: said again, of the past, of strangers and liars."""

from typing import TYPE_CHECKING

from pslab.verify.breach import expect
from pslab.verify.client import Client
from pslab.verify.time_limit import TimeLimitedPolicy
from psserver.coordinator import Coordinator, Send
from psserver.coordinator.outputs import RefusalNotice

if TYPE_CHECKING:
    from pslab.verify.schedule import Schedule

NOBODY = "w9"


def again(schedule: "Schedule", client: Client) -> None:
    """The same process joins once more: nothing changes."""
    member = schedule.coordinator.roster.present.get(client.worker)
    if member is not None and schedule.coordinator.stopped is None:
        before = schedule.coordinator.entries
        same, outputs = schedule.coordinator.join(client.worker, member.session, member.rank, schedule.now)
        expect(
            same is member and not outputs and schedule.coordinator.entries == before,
            f"{client.worker} joined once more, and something changed: {outputs}",
        )


def repeat(schedule: "Schedule", client: Client) -> None:
    """A message of the past arrives again: it is answered, and counts for nothing."""
    settled = schedule.coordinator.tickets.recent_of(client.worker)
    member = schedule.coordinator.roster.present.get(client.worker)
    if not settled or member is None:
        return
    ticket = settled[schedule.dice.pick(len(settled))]
    before = schedule.coordinator.entries
    who, now = (client.worker, member.incarnation), schedule.now
    if schedule.dice.pick(2):
        outputs = schedule.coordinator.commit(*who, ticket.number, now, samples=5, loss=9.0)
        told = [o.notice for o in outputs if isinstance(o, Send)]
        expect(told == [ticket.fate], f"{client.worker} commits {ticket.number} again and hears {told}")
    else:
        outputs = schedule.coordinator.abandon(*who, ticket.number, "late", now)
        expect(outputs == [], f"{client.worker} abandons {ticket.number}, which is settled: {outputs}")
    expect(schedule.coordinator.entries == before, "what is settled is decided upon again")
    schedule.guard.compare(schedule.coordinator)


def hostile(schedule: "Schedule", client: Client) -> None:
    """Everything that must be refused is refused, told, and changes nothing at all."""
    coordinator, pick = schedule.coordinator, schedule.dice.pick
    member = coordinator.roster.present.get(client.worker)
    incarnation = member.incarnation if member else client.incarnation
    foreign = [t.number for t in coordinator.tickets.live.values() if t.worker != client.worker]
    ticket = foreign[pick(len(foreign))] if foreign and pick(2) else 10**6 + pick(3)
    worker = (client.worker, NOBODY)[pick(2)] if member else client.worker
    if pick(2) or member is None:
        incarnation += 1 + pick(2)
    before = state(coordinator)
    match pick(4):
        case 0 if worker == NOBODY or member is None or incarnation != member.incarnation:
            outputs = coordinator.ready(worker, incarnation, schedule.now)
        case 1 if worker == NOBODY or member is None or incarnation != member.incarnation:
            outputs = coordinator.done(worker, incarnation, schedule.now)
        case 2:
            outputs = coordinator.abandon(worker, incarnation, ticket, "lie", schedule.now)
        case _:
            outputs = coordinator.commit(worker, incarnation, ticket, schedule.now, samples=10**6)
    refusals = [o.notice for o in outputs if isinstance(o, Send) and isinstance(o.notice, RefusalNotice)]
    expect(len(outputs) == len(refusals) == 1, f"a stranger is not refused, once: {outputs}")
    expect(bool(refusals[0].message), "a refusal says nothing")
    expect(state(coordinator) == before, "a stranger's message changed something")


def state(coordinator: Coordinator) -> str:
    """All that a coordinator remembers, as text, and how often its policy was asked."""
    c = coordinator
    people = (c.roster.present, c.roster.tallies, c.roster.unfinished)
    tickets = (c.tickets.next_number, c.tickets.live, c.tickets.settled)
    heard = c.policy.heard if isinstance(c.policy, TimeLimitedPolicy) else None
    rest = (c.version, c.initialised, c.started, c.stopped, c.loss, c.entries, heard)
    return repr((people, tickets, rest))
