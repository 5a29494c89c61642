"""Checks of who takes part."""

from collections.abc import Iterator

from pslab.check.ledger import COMMITTED, OPEN, Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e

# Rules under which a worker's contribution depends on its earlier ones, which no server has.
REMEMBERING = frozenset({"dana-slim", "elastic", "local-adamw"})


class Members(LogCheck):
    """Only members that are not done get tickets and commit; a return is a new incarnation, and says what of its
    memory is lost."""

    name = "members"

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Join():
                yield from self._join(entry.fact, ledger)
            case e.Grant(worker, ticket) | e.Initialise(worker, ticket):
                yield from _absent(worker, f"is granted ticket {ticket}", ledger)
                if (member := ledger.members.get(worker)) and member.done and not member.gone:
                    yield f"{worker} is granted ticket {ticket} after it was done"
            case e.Commit(worker, ticket):
                yield from _absent(worker, f"commits ticket {ticket}", ledger)
            case e.Done(worker) | e.Lost(worker) | e.Back(worker):
                yield from _absent(worker, f"is said to be {entry.kind}", ledger)
            case e.Resume(worker):
                yield from _absent(worker, "takes part again", ledger)
                if (member := ledger.members.get(worker)) and not member.done:
                    yield f"{worker} takes part again, and was not done"
            case e.Leave(worker):
                yield from _absent(worker, "leaves", ledger)
                for held in ledger.held():
                    if held.worker == worker and held.state == OPEN:
                        yield f"{worker} leaves while ticket {held.number} is open, not cancelled before"

    def _join(self, fact: e.Join, ledger: Ledger) -> Iterator[str]:
        before = ledger.members.get(fact.worker)
        if before is not None and not before.gone:
            yield f"{fact.worker} joins, but its incarnation {before.incarnation} has not left"
        if before is not None and fact.incarnation <= before.incarnation:
            yield (
                f"{fact.worker} joins as incarnation {fact.incarnation}, which should be above"
                f" its former one, {before.incarnation}"
            )
        for member in ledger.members.values():
            if not member.gone and member.worker != fact.worker and member.rank == fact.rank:
                yield f"{fact.worker} joins with rank {fact.rank}, which {member.worker} has"
        yield from _memory(fact, ledger)


def _memory(fact: e.Join, ledger: Ledger) -> Iterator[str]:
    """A worker begins with an empty memory: if it had one, the entry says that it is lost."""
    counts = ledger.contributions.get(fact.worker)
    committed = counts[COMMITTED] if counts is not None else 0
    rule = "" if ledger.job is None else str((ledger.job.local or {}).get("name"))
    if fact.forgets and not committed:
        yield f"{fact.worker} is said to forget what its {fact.forgets[0]} remembered, but had committed nothing"
    if committed and rule in REMEMBERING and "local rule" not in fact.forgets:
        yield (
            f"{fact.worker} joins after {committed} commits under the local rule {rule}, whose memory is lost, and the "
            "entry does not say so"
        )


def _absent(worker: str, what: str, ledger: Ledger) -> Iterator[str]:
    member = ledger.members.get(worker)
    if member is None:
        yield f"{worker} {what}, but never joined"
    elif member.gone:
        yield f"{worker} {what}, but has left"
