"""Checks of versions: contiguous, granted as they are, and staleness counted from them."""

from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e


class Versions(LogCheck):
    """Version 0 is installed once, every update adds one, and a grant names the current version."""

    name = "versions"

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        current = ledger.version
        match entry.fact:
            case e.Install(_, _, version):
                if current is not None:
                    yield f"initial values are installed although version {current} exists"
                elif version != 0:
                    yield f"initial values should become version 0, got {version}"
            case e.Grant(worker, ticket, version):
                if current is None:
                    yield f"{worker} is granted version {version} before any values were installed"
                elif version != current:
                    yield f"ticket {ticket} is granted version {version}, but {current} is current"
            case e.Apply(version):
                if current is None:
                    yield f"version {version} is made before any values were installed"
                elif version != current + 1:
                    yield f"the update should make version {current + 1}, got {version}"
            case e.Refuse(version):
                if current is None or version != current + 1:
                    yield f"version {version} is refused, but {current} is current"
            case e.Stop(_, version):
                if version != (current or 0):
                    yield f"the job stops at version {version}, but the last version made is {current or 0}"


class Staleness(LogCheck):
    """Staleness is the number of versions made between a ticket's base and the update that uses it."""

    name = "staleness"

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Apply(version, _, _, parts) | e.Refuse(version, _, _, parts):
                for part in parts:
                    yield from self._part(version, part, ledger)
            case e.Drop(_, number, staleness):
                ticket = ledger.tickets.get(number)
                if ticket is not None and ledger.version is not None and staleness != ledger.age(ticket):
                    yield (
                        f"ticket {number} is dropped with staleness {staleness}, but version {ledger.version}"
                        f" - base {ticket.base} = {ledger.age(ticket)}"
                    )

    def _part(self, version: int, part: e.Part, ledger: Ledger) -> Iterator[str]:
        ticket = ledger.tickets.get(part.ticket)
        if ticket is not None and ticket.base is not None and part.base != ticket.base:
            yield f"ticket {part.ticket} is applied with base {part.base}, but was granted {ticket.base}"
        if part.staleness != version - 1 - part.base:
            yield (
                f"ticket {part.ticket} has staleness {part.staleness}, but version {version} - 1"
                f" - base {part.base} = {version - 1 - part.base}"
            )
