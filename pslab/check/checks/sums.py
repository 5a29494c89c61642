"""Checks of how contributions are summed: weights, early folds, the order of a round."""

import math
from collections.abc import Iterator

from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck
from pslab.runs.log import Line
from pswire.decisions import entries as e


class Weights(LogCheck):
    """A part's weight is its factor times the update's scale: nothing else is multiplied in."""

    name = "weights"

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        if not isinstance(entry.fact, e.Apply | e.Refuse):
            return
        for part in entry.fact.parts:
            expected = part.factor * entry.fact.scale
            if not math.isclose(part.weight, expected, rel_tol=1e-12):
                yield (
                    f"ticket {part.ticket} has weight {part.weight}, but factor {part.factor}"
                    f" * scale {entry.fact.scale} = {expected}"
                )


class Folds(LogCheck):
    """What was folded is exactly the head of the next update: same tickets, order, factors."""

    name = "folds"

    def __init__(self) -> None:
        self._open: list[e.Fold] = []

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Fold(number) as fold:
                if any(other.ticket == number for other in self._open):
                    yield f"ticket {number} is folded twice into the same sum"
                self._open.append(fold)
            case e.Drop(_, number, _, "stopped"):
                # The job ended before the sum was used.
                self._open = [fold for fold in self._open if fold.ticket != number]
            case e.Drop(_, number):
                if any(fold.ticket == number for fold in self._open):
                    yield f"ticket {number} is dropped although it was already folded into the open sum"
            case e.Apply(version, _, _, parts) | e.Refuse(version, _, _, parts):
                yield from self._compare(version, parts)
                self._open.clear()

    def _compare(self, version: int, parts: tuple[e.Part, ...]) -> Iterator[str]:
        folded = [fold.ticket for fold in self._open]
        head = [part.ticket for part in parts[: len(folded)]]
        if head != folded:
            yield (
                f"version {version} should begin with the folded tickets {folded} in this order, got {head}:"
                " the shards have summed something else than the log says"
            )
            return
        for fold, part in zip(self._open, parts, strict=False):
            if (fold.factor, fold.compensation) != (part.factor, part.compensation):
                yield (
                    f"ticket {fold.ticket} was folded with factor {fold.factor}, compensation"
                    f" {fold.compensation}, but the update says {part.factor}, {part.compensation}"
                )

    def finish(self, ledger: Ledger) -> Iterator[str]:
        if self._open and ledger.stop is not None and ledger.stop.success:
            yield f"tickets {[fold.ticket for fold in self._open]} were folded, but never applied"


class Turns(LogCheck):
    """Contributions with a turn are summed in the order of their turns, in a round without newcomers."""

    name = "turns"

    def __init__(self) -> None:
        # A newcomer may take a turn that lies before one that was folded already.
        self._newcomer = False

    def see(self, entry: Line, ledger: Ledger) -> Iterator[str]:
        match entry.fact:
            case e.Grant(worker):
                member = ledger.members.get(worker)
                first = member is not None and not member.granted
                # The first grants of a job go out together, before anything is committed.
                self._newcomer |= first and bool(ledger.contributions)
            case e.Apply(version, _, _, parts) | e.Refuse(version, _, _, parts):
                tickets = [ledger.tickets.get(part.ticket) for part in parts]
                turns = [t.turn for t in tickets if t is not None and t.turn is not None]
                falls = any(later <= earlier for earlier, later in zip(turns, turns[1:], strict=False))
                if falls and not self._newcomer:
                    yield f"version {version} sums turns {turns}, which should only rise"
                self._newcomer = False
