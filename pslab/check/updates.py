"""Checks of updates: versions, staleness, weights, the order of their sums, and elements that were kept back."""

import math
from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.runs.fold import LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e


class VersionsCheck(LogCheck):
    """Version 0 is installed once, right behind the model that it settles; every update adds one, and a grant names the
    current version."""

    name = "versions"

    def __init__(self) -> None:
        # Whether the entry before settled the model.
        self._settled = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        current = state.version
        settled, self._settled = self._settled, isinstance(entry.fact, e.Model)
        if settled and not isinstance(entry.fact, e.Install):
            yield f"the model is settled, and a {entry.kind} entry follows in place of the initial values"
        elif isinstance(entry.fact, e.Install) and not settled:
            yield "initial values are installed, and the entry before does not settle the model"
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
            case e.Stop(_, version):
                if version != (current or 0):
                    yield f"the job stops at version {version}, but the last version made is {current or 0}"


class Staleness(LogCheck):
    """Staleness is the number of versions made between a ticket's base and the update that uses it."""

    name = "staleness"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Apply(version, _, _, parts):
                for part in parts:
                    yield from self._part(version, part, state)
            case e.Drop(_, number, staleness):
                ticket = state.tickets.get(number)
                if ticket is not None and state.version is not None and staleness != state.age(ticket):
                    yield (
                        f"ticket {number} is dropped with staleness {staleness}, but version {state.version}"
                        f" - base {ticket.base} = {state.age(ticket)}"
                    )

    def _part(self, version: int, part: e.Part, state: LogState) -> Iterator[str]:
        ticket = state.tickets.get(part.ticket)
        if ticket is not None and ticket.base is not None and part.base != ticket.base:
            yield f"ticket {part.ticket} is applied with base {part.base}, but was granted {ticket.base}"
        if part.staleness != version - 1 - part.base:
            yield (
                f"ticket {part.ticket} has staleness {part.staleness}, but version {version} - 1"
                f" - base {part.base} = {version - 1 - part.base}"
            )


class WeightsCheck(LogCheck):
    """A part's weight is its factor times the update's scale, and nothing else."""

    name = "weights"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if not isinstance(entry.fact, e.Apply):
            return
        for part in entry.fact.parts:
            expected = part.factor * entry.fact.scale
            if not math.isclose(part.weight, expected, rel_tol=1e-12):
                yield (
                    f"ticket {part.ticket} has weight {part.weight}, but factor {part.factor}"
                    f" * scale {entry.fact.scale} = {expected}"
                )


class Folds(LogCheck):
    """The folds before an update are exactly its first parts: same tickets, order and factors."""

    name = "folds"

    def __init__(self) -> None:
        self._open: list[e.Fold] = []

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Fold(number) as fold:
                if any(other.ticket == number for other in self._open):
                    yield f"ticket {number} is folded twice into the same sum"
                self._open.append(fold)
            case e.Drop(_, number, _, "stopped" | e.REPLACED):
                # The job, or the policy, ended before the sum was used.
                self._open = [fold for fold in self._open if fold.ticket != number]
            case e.Drop(_, number):
                if any(fold.ticket == number for fold in self._open):
                    yield f"ticket {number} is dropped although it was already folded into the open sum"
            case e.Apply(version, _, _, parts):
                yield from self._compare(version, parts)
                self._open.clear()

    def _compare(self, version: int, parts: tuple[e.Part, ...]) -> Iterator[str]:
        folded = [fold.ticket for fold in self._open]
        head = [part.ticket for part in parts[: len(folded)]]
        if head != folded:
            yield (
                f"version {version} should begin with the folded tickets {folded} in this order, got {head}:"
                " the shards have summed other contributions than the log says"
            )
            return
        for fold, part in zip(self._open, parts, strict=False):
            if (fold.factor, fold.compensation) != (part.factor, part.compensation):
                yield (
                    f"ticket {fold.ticket} was folded with factor {fold.factor}, compensation"
                    f" {fold.compensation}, but the update says {part.factor}, {part.compensation}"
                )

    def finish(self, state: LogState) -> Iterator[str]:
        if self._open and state.stop is not None and state.stop.success:
            yield f"tickets {[fold.ticket for fold in self._open]} were folded, but never applied"


class TurnsCheck(LogCheck):
    """In a round without newcomers, contributions are summed in the order of their turns."""

    name = "turns"

    def __init__(self) -> None:
        # A newcomer joined the round: its turn may lie before one that is already folded.
        self._newcomer = False
        # A policy that sums in the order of arrival may have taken over tickets with turns.
        self._unsettled = False

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Grant(worker):
                member = state.members.get(worker)
                first = member is not None and not member.granted
                # The first workers of a job are no newcomers: their grants come before any commit.
                self._newcomer |= first and bool(state.committed)
            case e.Apply(version, _, _, parts):
                tickets = [state.tickets.get(part.ticket) for part in parts]
                turns = [t.turn for t in tickets if t is not None and t.turn is not None]
                falls = any(later <= earlier for earlier, later in zip(turns, turns[1:], strict=False))
                if falls and not (self._newcomer or self._unsettled):
                    yield f"version {version} sums turns {turns}, which should only rise"
                self._newcomer = False
            case e.Policy() | e.Settled():
                self._unsettled = isinstance(entry.fact, e.Policy)


class KeptBackCheck(LogCheck):
    """Elements are kept back of versions that were made, once of each and in their order, and at least one."""

    name = "kept back"

    def __init__(self) -> None:
        self._newest = 0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        match entry.fact:
            case e.Nonfinite(version, kept):
                if not self._newest < version <= (state.version or 0):
                    yield (
                        f"elements of version {version} are kept back; expected a version that was made, and a later "
                        f"one than {self._newest}"
                    )
                if kept < 1:
                    yield f"{kept} elements of version {version} are kept back; expected at least one"
                self._newest = max(self._newest, version)
            case e.Restore(_, version):
                # What came behind the checkpoint is void.
                self._newest = min(self._newest, version)
