"""The coming update of one shard: contributions to add, and the step to the next version."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from psserver.decisions.orders import Apply, Fold
from psserver.shard.arena import Arena
from psserver.shard.compensators import Gap
from psserver.shard.deltas import DeltaStream
from psserver.shard.facts import VersionMade, by_variable, either
from psserver.shard.holds import Holds
from psserver.shard.mixing import Kept, StateBases, weight
from psserver.shard.staging import Staging
from psserver.shard.tables import Tables
from psserver.shard.tables.group import nbytes_of
from psserver.shard.updater import Updater
from pswire.model.plan import Plan, ShardLayout
from pswire.values import value

Floats = NDArray[np.float32]


class ShardError(RuntimeError):
    """An order that cannot be executed: the log and this shard's state disagree."""


@value
class PendingUpdate:
    """The rest of a Fold or an Apply: `compute` writes only arrays that no other thread writes, `finish` is quick."""

    compute: Callable[[], None]
    finish: Callable[[], None]


def need(staging: Staging, ticket: int) -> None:
    """Raise ShardError if the ticket has no payload here."""
    if not staging.holds(ticket):
        raise ShardError(f"the payload of ticket {ticket} is not here")


class Updates:
    """The open sum. Not thread-safe but for `PendingUpdate.compute`.

    `stream`: makes the published versions from the optimizer's weights; None publishes these. `fact`: of the newest
    version.
    """

    def __init__(
        self,
        plan: Plan,
        layout: ShardLayout,
        arena: Arena,
        holds: Holds,
        row_holds: Holds,
        staging: Staging,
        updater: Updater,
        stream: DeltaStream | None,
        tables: Tables,
        bases: StateBases,
    ) -> None:
        self._plan, self._layout = plan, layout
        self._arena, self._holds, self._row_holds = arena, holds, row_holds
        self._staging = staging
        self._updater = updater
        self._stream = stream
        self._tables = tables
        self._bases = bases
        self.fact = VersionMade(-1)

    # Orders

    def fold(self, fold: Fold, tickets: int | None = None) -> PendingUpdate:
        """Add a contribution to the coming update. Raises ShardError, with nothing changed.

        `tickets`: at work when the order begins; by default, those that are open now.
        """
        self._check(fold)
        mix = self._mix(fold.ticket, len(self._staging.tickets) if tickets is None else tickets)
        gap = self._gap(fold.ticket) if fold.compensation else None
        if rows := self._staging.rows(fold.ticket):
            # Kept, and summed with the update.
            version = self._staging.tickets[fold.ticket].version
            self._tables.add(rows, fold.factor, version, fold.compensation)
        payload = self._staging.take(fold.ticket)

        def compute() -> None:
            mixed = mix(payload)
            self._updater.add(payload, fold.factor, gap, fold.compensation, mixed)

        def finish() -> None:
            if not self._updater.keeps(payload):
                self._staging.recycle(payload)
            self._holds.end(fold.ticket)
            self._row_holds.end(fold.ticket)

        return PendingUpdate(compute, finish)

    @property
    def started(self) -> set[int]:
        """The versions that open tickets started from."""
        return {opened.version for opened in self._staging.tickets.values() if not opened.initialise}

    def _mix(self, ticket: int, tickets: int) -> Callable[[Floats], float]:
        """Return what makes the changes of state in a ticket's payload differences to the newest state, and returns
        their weight."""
        version, newest = self._staging.tickets[ticket].version, self._arena.newest
        if not self._bases or version == newest:
            return lambda payload: 1.0
        now, start = self._now, self._updater.trainable

        def mix(payload: Floats) -> float:
            with np.errstate(all="ignore"):
                self._bases.value(version, payload[start:], now[start:], start)
            return weight(tickets, newest - version)

        return mix

    @property
    def _now(self) -> Floats:
        """The weights that the next update starts from."""
        values = self._arena.values(self._arena.newest)
        assert values is not None
        return values if self._stream is None else self._stream.exact

    def row_bytes(self, apply: Apply) -> int:
        """Return the bytes of rows that the update passes over, before or behind `apply`."""
        holds = self._staging.holds
        staged = [self._staging.rows(part.ticket) for part in apply.parts if holds(part.ticket)]
        return sum(map(nbytes_of, [*staged, *(rows for rows, _ in self._tables.added)]))

    def _check(self, fold: Fold) -> None:
        need(self._staging, fold.ticket)
        if fold.compensation and not self._updater.compensates:
            raise ShardError(
                f"ticket {fold.ticket} is to be compensated, but the job's policy names no compensator"
            )
        version = self._staging.tickets[fold.ticket].version
        if self._updater.in_turn and version != self._arena.newest:
            raise ShardError(
                f"ticket {fold.ticket} is of version {version}'s group, but {self._arena.newest} is newest"
            )

    def _check_apply(self, apply: Apply) -> None:
        if apply.version != self._arena.newest + 1:
            raise ShardError(f"apply makes version {apply.version}, but {self._arena.newest} is newest")
        for part in apply.parts:
            self._check(part)
        if self._updater.empty and not apply.parts:
            raise ShardError(f"apply of version {apply.version} has no contributions")

    def _gap(self, ticket: int) -> Gap:
        now = self._arena.values(self._arena.newest)
        assert now is not None
        version = self._holds.of(ticket)
        base = None if version is None else self._arena.values(version)
        assert base is not None
        return self._updater.gap(now, base, self._arena.newest)

    def apply(self, apply: Apply) -> PendingUpdate:
        """Add the last contributions and make the version. Raises ShardError, with nothing changed.

        Elements that would not be finite keep their old values, and `fact` tells of them.
        """
        self._check_apply(apply)
        tickets = len(self._staging.tickets)
        folds = [self.fold(part, tickets) for part in apply.parts]
        stream, base = self._stream, self._arena.newest
        newest = self._arena.values(base)
        assert newest is not None
        out = self._arena.take()
        now, target = (newest, out) if stream is None else (stream.exact, stream.spare)
        tables = self._tables if self._tables else None
        bases, started = self._bases, self.started if self._bases else set()
        self._tables.advancing = tables is not None
        replaced: dict[int, Kept] = {}
        fact = VersionMade(apply.version)

        def compute() -> None:
            nonlocal replaced, fact
            with np.errstate(all="ignore"):
                for fold in folds:
                    fold.compute()
                kept = self._updater.step(now, target, base, apply.scale, apply.lr_scale)
                if stream is not None:
                    kept = either(kept, stream.make(newest, out, base))
                elements, rows = (
                    tables.advance(apply.scale, apply.lr_scale) if tables is not None else (0, {})
                )
            found = by_variable(kept, self._plan, self._layout) | rows
            elements += self._updater.changing(base, out.size)
            fact = VersionMade(apply.version, found, elements)
            replaced = bases.replaced(newest, out, started)

        def finish() -> None:
            for fold in folds:
                fold.finish()
            if tables is not None:
                tables.committed()
            for values in self._updater.clear():
                self._staging.recycle(values)
            bases.keep(replaced)
            self._arena.publish(out)
            self.fact = fact
            if stream is not None:
                stream.publish(apply.version)

        return PendingUpdate(compute, finish)

    def discard(self) -> None:
        """Drop what was added, and start the coming update anew."""
        for values in self._updater.clear():
            self._staging.recycle(values)
        self._tables.clear()
