"""The shard: stages payloads and executes orders, strictly in order."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from psserver.decisions.orders import (
    Admit,
    Apply,
    Discard,
    Dismiss,
    Fold,
    Hold,
    Install,
    Note,
    Order,
    Release,
    Save,
    Seal,
)
from psserver.fast import ALONE, Backend, Variant, prepare
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.policies.declarations import BARE
from psserver.shard import arithmetic
from psserver.shard.arena import Allocate, Arena, plain
from psserver.shard.deltas import DeltaStream
from psserver.shard.facts import VersionMade
from psserver.shard.fragments import GroupTurn, check_fragments
from psserver.shard.holds import Holds
from psserver.shard.mixing import StateBases
from psserver.shard.payload_checks import PayloadChecks
from psserver.shard.staging import OpenTicket, Slot, Staging
from psserver.shard.state import ShardParts, ShardState, check, copied, save, take_up
from psserver.shard.tables import Tables
from psserver.shard.updater import Updater
from psserver.shard.updates import PendingUpdate, ShardError, Updates, need
from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import Plan, ShardLayout
from pswire.model.rows import WantedRows
from pswire.transport.blocks import BlockCodec

Floats = NDArray[np.float32]


class Shard:
    """The storages of one server (arena versions and sparse tables), staging, and an updater with the coming update.

    A payload is one flat float32 array in the layout of the plan: the trainable part (weights or a gradient), then the
    state part (values, or their changes since the version of the ticket); and rows of gradients of tables. A version
    covers the arena and all tables. Not thread-safe; the caller serialises everything but `PendingUpdate.compute` and
    `read_rows`.

    `tensors`: the policy's declarations of what shards compute.
    `keep_bases`: keep the version that an open ticket started from even if `tensors` does not need it. `deltas`: the
    codec of the changes by which versions travel, and of which they are made; None: versions are the optimizer's
    weights.
    """

    def __init__(
        self,
        plan: Plan,
        server: int,
        optimizer: Optimizer,
        *,
        versions: int = 3,
        staging: int = 4,
        tensors: TensorParts = BARE,
        keep_bases: bool = False,
        deltas: BlockCodec | None = None,
        backend: Backend = ALONE,
        allocate: Allocate = plain,
    ) -> None:
        self.plan = plan
        self.layout = plan.shards[server]
        optimizer.check_whole(split_variables(plan), len(plan.shards))
        self.optimizer = optimizer.bound(*_trainable_pieces(plan, self.layout))
        self.tensors = tensors
        check_fragments(tensors.fragments, optimizer, plan)
        self.groups = Groups(plan, tensors.fragments)
        turns: list[GroupTurn] = []
        if tensors.fragments > 1:
            turns = [
                GroupTurn(part, optimizer.bound(*_trainable_pieces(plan, part.layout)))
                for part in (each.trained for each in self.groups.all(server))
            ]
        keep = keep_bases or tensors.keep_bases
        self.arena = Arena(self.layout.elements, versions, unlimited=keep, allocate=allocate)
        self.staging = Staging(self.layout.elements, staging)
        self._backend = backend
        self._updater = Updater(self.optimizer, tensors, self.layout.trainable, backend, turns)
        self.checks = PayloadChecks(plan, server, backend)
        self.stream = None if deltas is None else DeltaStream(deltas, self.layout, self.groups)
        self.tables = Tables(plan, server, optimizer, backend, keep_bases=tensors.keep_bases)
        self.holds = Holds(self.arena, keep=keep)
        self.row_holds = Holds(self.tables, keep=tensors.keep_bases)
        self.bases = StateBases(self.layout)
        self._updates = Updates(
            *(plan, self.layout, self.arena, self.holds, self.row_holds, self.staging),
            *(self._updater, self.stream, self.tables, self.bases),
        )
        # Member -> incarnation.
        self.members: dict[str, int] = {}
        # An order is between `prepare` and the end of `finish`.
        self._unfinished = False

    @property
    def version(self) -> int:
        """The newest version; -1 before the first is installed."""
        return self.arena.newest

    @property
    def deltas(self) -> BlockCodec | None:
        """The codec of changes by which versions travel; None without one."""
        return None if self.stream is None else self.stream.codec

    @property
    def variants(self) -> list[Variant]:
        """Every pass over arrays that the shard runs."""
        return [*self._updater.variants, *((loop, loop.letters) for loop in arithmetic.LOOPS)]

    def compile(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Compile all that the shard runs, which any thread may do, and ends soon once `stop` returns True."""
        prepare(self.variants, rows=bool(self.tables), passes=self.tables.passes, stop=stop)
        if self.stream is not None and not stop():
            self.stream.codec.prepare()

    def passed(self, order: Order) -> int:
        """Return the bytes of payloads that executing `order` passes over, if it has arithmetic.

        An update of contributions that lie side by side passes over each of them, and every update over all rows.
        """
        apart = len(order.parts) + len(self._updater.kept) if isinstance(order, Apply) else 1
        rows = self._updates.row_bytes(order) if self.plan.tables and isinstance(order, Apply) else 0
        return self.layout.nbytes * max(1, apart) + rows

    @property
    def slots(self) -> dict[str, Floats]:
        """The optimizer's slots by name."""
        return self._updater.slots

    def copied_slots(self) -> tuple[int, Floats]:
        """Return the version, and a copy of the optimizer's slots at it, in the order of the rule."""
        out = np.empty((len(self.optimizer.slots), self.layout.trainable), np.float32)
        for row, slot in zip(out, self.slots.values(), strict=True):
            row[:] = slot
        return self.version, out.reshape(-1)

    @property
    def fact(self) -> VersionMade:
        """What there is to tell of the newest version. Of one that was restored, nothing is known any more."""
        return self._updates.fact

    # Payloads

    def refusal(self, ticket: int, worker: str | None = None) -> str | None:
        """Say why a payload for this ticket (of `worker`, if known) cannot be accepted; None if it can."""
        opened = self.staging.tickets.get(ticket)
        if opened is None:
            return f"ticket {ticket} is not open here: it was never granted, or is settled or cancelled"
        if worker is not None and worker != opened.worker:
            return f"ticket {ticket} is {opened.worker}'s: expected its payload, got one of {worker!r}"
        if opened.sealed:
            return f"ticket {ticket} is committed: its payload is final"
        return None

    def part(self, ticket: int) -> GroupPart:
        """Return the part of an open ticket's payload that travels; the rest of it is zero. All of it for a ticket that
        is not open."""
        opened = self.staging.tickets.get(ticket)
        if opened is None or opened.initialise or self.groups.count == 1:
            return GroupPart(self.layout)
        return self.groups.of(opened.version, self.layout.server)

    def narrow(self, values: Floats) -> NDArray[np.uint16]:
        """Return a piece of a version as the bits of bfloat16 numbers."""
        bits = np.empty(values.size, np.uint16)
        arithmetic.narrow(bits, values, self._backend)
        return bits

    def begin(self, ticket: int, cut: Callable[[], object] = lambda: None) -> Slot:
        """Reserve a slot for the payload of an open, admitted ticket; `cut` ends the stream that delivers it."""
        return self.staging.begin(ticket, cut)

    # Readers of rows

    def read_rows(self, keys: WantedRows, version: int) -> Sequence[Floats]:
        """Return rows at a version, [n, dim] for each table. Raises ValueError if the version is gone."""
        return self.tables.read(keys, version)

    def take_back(self) -> None:
        """Take older versions from tickets that have not read them in time. A read under way keeps its buffer, which is
        replaced, so that no reader ever sees a version change."""
        self.holds.take_back()
        self.row_holds.take_back()

    # Orders

    def blocked(self, order: Order) -> bool:
        """Return True for an Apply without a free buffer: tickets must read, or `take_back`, before it can run."""
        return isinstance(order, Apply) and not self.arena.can_take()

    def execute(self, order: Order) -> None:
        """Execute an order that is not `blocked`. Raises ShardError, with nothing changed."""
        work = self.prepare(order)
        if work is not None:
            work.compute()
            work.finish()

    def prepare(self, order: Order) -> PendingUpdate | None:
        """Do the bookkeeping of an order. Return what remains to compute and finish, if anything."""
        match order:
            case Hold():
                self._hold(order)
            case Install(ticket):
                self._install(ticket)
            case Seal(ticket):
                if ticket in self.staging.tickets:
                    self.staging.tickets[ticket].sealed = True
                    # The worker has read what it computed the payload from.
                    self.holds.has_read(ticket)
                    self.row_holds.has_read(ticket)
            case Fold():
                return self._begun(self._updates.fold(order))
            case Apply():
                return self._begun(self._updates.apply(order))
            case Discard():
                self._updates.discard()
            case Release(ticket):
                self.staging.close(ticket)
                self.holds.end(ticket)
                self.row_holds.end(ticket)
                if self.bases.nbytes:
                    self.bases.prune(self._updates.started)
            case Admit(worker, incarnation):
                self.members[worker] = incarnation
            case Dismiss(worker):
                self.members.pop(worker, None)
            case Save() | Note():
                # The server that executes a Save asks for `state` next.
                pass
            case _:
                assert_never(order)
        return None

    def _hold(self, order: Hold) -> None:
        self.staging.open(
            OpenTicket(order.ticket, order.worker, order.turn, order.initialise, False, order.version)
        )
        if not order.initialise:
            if order.version != self.version:
                raise ShardError(
                    f"ticket {order.ticket} was granted version {order.version}, but {self.version} is newest"
                )
            self.holds.grant(order.ticket, order.version)
            if self.plan.tables:
                self.row_holds.grant(order.ticket, order.version)

    def _install(self, ticket: int) -> None:
        need(self.staging, ticket)
        values = self.arena.take()
        payload = self.staging.take(ticket)
        values[...] = payload
        self.staging.recycle(payload)
        self.arena.publish(values)
        if self.stream is not None:
            self.stream.begin(values)
        self._updates.fact = VersionMade(self.version)

    def _begun(self, update: PendingUpdate) -> PendingUpdate:
        self._unfinished = True

        def finish() -> None:
            update.finish()
            self._unfinished = False

        return PendingUpdate(update.compute, finish)

    # State

    def state(self) -> ShardState:
        """Return a copy of everything the shard holds, between two orders. Raises ShardError within one.

        Incoming payloads and readers are left out: a worker repeats pushes and pulls that were not answered.
        """
        found = copied(self.views())
        return ShardState(found.facts, {**found.arrays, **self.tables.rows_saved()})

    def views(self) -> ShardState:
        """Return `state` without a copy and without the rows of tables (`Tables.rows_saved`).

        The arrays are valid until the next order that is `Writing`.
        """
        if self._unfinished:
            raise ShardError("an order is under way: expected state() between two orders")
        return save(self._parts)

    def check(self, state: ShardState) -> None:
        """Raise StateError if `restore` would."""
        check(state, self._parts)

    def restore(self, state: ShardState) -> None:
        """Continue from that state, in a new shard of the same plan, server, optimizer and tensors.

        The same orders and payloads then give the same bits. Arrays are copied. Raises StateError, with nothing
        changed, for a state that does not fit; for another number of servers see `reshard`.
        """
        take_up(state, self._parts)
        self._updates.fact = VersionMade(self.version)

    @property
    def _parts(self) -> ShardParts:
        plan, optimizer, tensors = self.plan, self.optimizer, self.tensors
        return ShardParts(
            plan,
            self.layout,
            optimizer,
            tensors,
            self.members,
            self.arena,
            self.holds,
            self.row_holds,
            self.staging,
            self._updater,
            self.stream,
            self.tables,
            self.bases,
        )


def split_variables(plan: Plan) -> list[str]:
    """Return the names of the trainable variables that lie on several servers."""
    held = Counter(piece.variable for shard in plan.shards for piece in shard.slices)
    named = ((plan.variables[number], count) for number, count in sorted(held.items()))
    return [spec.name for spec, count in named if count > 1 and spec.kind == "trainable"]


def _trainable_pieces(
    plan: Plan, layout: ShardLayout
) -> tuple[dict[str, tuple[int, ...]], list[tuple[str, int, int]]]:
    """Return the shapes of all trainable variables, and (name, start, stop) of each piece in this layout."""
    pieces = [(plan.variables[p.variable].name, p.offset, p.offset + p.size) for p in layout.slices]
    trained = [piece for piece in pieces if piece[1] < layout.trainable]
    return {spec.name: spec.shape for spec in plan.variables if spec.kind == "trainable"}, trained
