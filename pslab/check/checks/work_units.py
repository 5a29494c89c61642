"""Checks of a job that deals its data as work units: each part counts once per epoch, in each phase."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pslab.check.log_check import LogCheck
from pslab.runs.fold import Fold
from pslab.runs.log import Line
from pswire.decisions import entries as e

OUT, COUNTED, SKIPPED, ENDED = "out", "counted", "skipped", "beyond its end"
# How a log says that nothing is left.
COMPLETE = "all work units are done"

Place = tuple[int, int, int]


@dataclass(slots=True)
class Unit:
    """Its parts that were dealt and did not come back, and how many it has; None: nobody said yet."""

    length: int | None
    parts: dict[int, str] = field(default_factory=dict)

    def missing(self) -> list[int]:
        """Parts that were neither counted nor skipped."""
        return [part for part in range(self.length or 0) if self.parts.get(part, OUT) == OUT]


class WorkUnits(LogCheck):
    """Each part of a work unit is applied once per epoch, and dealt again only after it came to nothing."""

    name = "work units"

    def __init__(self) -> None:
        self._terms: e.Work | None = None
        self._units: dict[tuple[int, int], Unit] = {}
        # Of tickets without a fate.
        self._places: dict[int, Place] = {}
        self._skipped = 0

    def see(self, entry: Line, state: Fold) -> Iterator[str]:
        match entry.fact:
            case e.Work() as terms:
                if state.version is not None and any(state.playing()):
                    yield "the job's work units are declared while workers train"
                # Those of a former phase are over.
                self._units.clear()
                self._places.clear()
                self._terms = terms if terms.units else None
            case e.Grant() as grant:
                yield from self._dealt(grant)
            case e.Commit(_, ticket, ends=True) if ticket in self._places:
                self._shorten(self._places[ticket], 1)
            case e.Apply(version, _, _, parts):
                for part in parts:
                    yield from self._counted(part.ticket, version)
            case e.Drop(_, ticket, _, _, skipped):
                self._came_back(ticket, skipped)
            case e.Cancel(_, ticket):
                self._came_back(ticket, False)
            case e.Abandon(_, ticket, _, skipped, ends):
                if ends and ticket in self._places:
                    self._end(self._places.pop(ticket))
                else:
                    self._came_back(ticket, skipped)

    def _dealt(self, grant: e.Grant) -> Iterator[str]:
        terms, place = self._terms, (grant.epoch, grant.unit, grant.part)
        if terms is None:
            if grant.unit is not None:
                yield f"ticket {grant.ticket} takes a part of a work unit, and the job deals none"
            return
        epoch, unit, part = place
        if epoch is None or unit is None or part is None:
            yield f"ticket {grant.ticket} takes no part of a work unit, and the job deals them"
            return
        if not (epoch < terms.epochs and unit < terms.units and (not terms.length or part < terms.length)):
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)}, which there is not"
            return
        early = min((other for other, _, _ in self._places.values()), default=epoch)
        if terms.apart and early < epoch:
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)} before epoch {early} has counted"
        found = self._units.setdefault((epoch, unit), Unit(terms.length or None))
        if part in found.parts:
            yield f"ticket {grant.ticket} takes {_named(epoch, unit, part)}, which is {found.parts[part]} already"
        found.parts.setdefault(part, OUT)
        self._places[grant.ticket] = (epoch, unit, part)

    def _counted(self, ticket: int, version: int) -> Iterator[str]:
        place = self._places.pop(ticket, None)
        if place is None:
            return
        epoch, unit, part = place
        parts = self._units[epoch, unit].parts
        if parts.get(part) == COUNTED:
            yield f"version {version} counts {_named(epoch, unit, part)} a second time"
        parts[part] = COUNTED

    def _came_back(self, ticket: int, skipped: bool) -> None:
        place = self._places.pop(ticket, None)
        if place is None:
            return
        epoch, unit, part = place
        parts = self._units[epoch, unit].parts
        self._skipped += skipped
        if skipped:
            parts[part] = SKIPPED
        elif parts.get(part) == OUT:
            del parts[part]

    def _shorten(self, place: Place, more: int) -> None:
        epoch, unit, part = place
        found, length = self._units[epoch, unit], part + more
        found.length = length if found.length is None else min(found.length, length)

    def _end(self, place: Place) -> None:
        self._shorten(place, 0)
        epoch, unit, part = place
        self._units[epoch, unit].parts[part] = ENDED

    def finish(self, state: Fold) -> Iterator[str]:
        terms, stop = self._terms, state.stop
        if terms is None or stop is None or not stop.reason.startswith(COMPLETE):
            return
        for epoch in range(terms.epochs):
            for unit in range(terms.units):
                found = self._units.pop((epoch, unit), None)
                if found is None:
                    yield f"epoch {epoch}, unit {unit} was never dealt, although the log says that {COMPLETE}"
                elif found.length is None:
                    yield f"epoch {epoch}, unit {unit} was not read to its end, although the log says that {COMPLETE}"
                elif missing := found.missing():
                    yield f"{_named(epoch, unit, missing[0])} was not counted, although the log says that {COMPLETE}"

    def remarks(self, state: Fold) -> Iterator[str]:
        if self._skipped:
            yield f"{self._skipped} parts of work units were skipped: they were given up or dropped too often"


def _named(epoch: int, unit: int, part: int) -> str:
    return f"epoch {epoch}, unit {unit}, part {part}"
