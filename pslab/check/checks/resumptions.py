"""Checks of checkpoints, and of what follows when new processes go on from one."""

from collections.abc import Iterator

from pslab.check.ledger import OPEN, Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e


class Resumptions(LogCheck):
    """Checkpoints are of the present version; a restore follows on one, and all that was held by processes of before is
    given up before anybody comes."""

    name = "checkpoints"

    def __init__(self) -> None:
        # A job was resumed, and nobody has joined since.
        self._clearing = False

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Checkpoint(version):
                yield from self._version("a checkpoint", version, ledger)
            case e.Restore(_, version):
                yield from self._version("a restore", version, ledger)
                if ledger.saved != entry.i - 1:
                    yield "a restore should follow on the checkpoint that it goes on from"
                self._clearing = True
            case e.Join() | e.Grant() | e.Initialise() | e.Stop() if self._clearing:
                self._clearing = False
                yield from self._left(entry.kind, ledger)
            case _:
                pass

    def _version(self, what: str, version: int, ledger: Ledger) -> Iterator[str]:
        if ledger.version is None:
            yield f"{what} of version {version}, before any values were installed"
        elif version != ledger.version:
            yield f"{what} of version {version}, but {ledger.version} is current"

    def _left(self, kind: str, ledger: Ledger) -> Iterator[str]:
        here = sorted(member.worker for member in ledger.members.values() if not member.gone)
        if here:
            yield f"{kind} after a restore, but {here[0]}, a process of before, has not left"
        for ticket in ledger.held():
            if ticket.state == OPEN:
                yield f"{kind} after a restore, but ticket {ticket.number} of a process of before is open"
