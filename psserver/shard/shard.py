"""The shard: stages payloads and executes orders, strictly in their order."""

import math
from collections.abc import Callable, Collection
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import NUMPY, Backend, Loop, Optimizer
from psserver.policies import TensorParts
from psserver.policies.declarations import BARE
from psserver.policies.values import value
from psserver.shard import arithmetic
from psserver.shard.arena import Allocate, Arena, plain
from psserver.shard.compensators import Gap
from psserver.shard.orders import (
    Admit,
    Apply,
    Discard,
    Dismiss,
    Fold,
    Install,
    Note,
    Order,
    Pin,
    Release,
    Save,
    Seal,
)
from psserver.shard.ordinary import ordinary
from psserver.shard.staging import BorrowedBuffer, OpenTicket, Slot, Staging
from psserver.shard.state import ShardParts, ShardState, save, take_up
from psserver.shard.updater import Updater
from pswire.model.plan import Plan

Floats = NDArray[np.float32]


class NonfiniteError(RuntimeError):
    """The update that an order makes is not finite: it is not published, and the job cannot go on."""


class ShardError(RuntimeError):
    """An order that cannot be executed: the log and this shard's state disagree."""


@value
class PendingUpdate:
    """What remains of a Fold or an Apply: `compute` touches only arrays that nobody else writes, `finish` is quick."""

    compute: Callable[[], None]
    finish: Callable[[], None]


class Shard:
    """Arrays of one server: arena versions, staging, and an updater with the coming update.

    A payload is one flat float32 array in the layout of the plan: the
    trainable part (weights, or a gradient), then the state part (values, or
    deltas). Not thread-safe; the caller serialises everything but `PendingUpdate.compute`.

    `tensors`: what the policy says about its parts that see tensors.
    `unchecked`: publish versions that are not finite, too, where only the order of things matters.
    `keep_bases`: keep the version that an open ticket started from even if they do not need it.
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
        backend: Backend = NUMPY,
        allocate: Allocate = plain,
        unchecked: bool = False,
    ) -> None:
        self.plan = plan
        self.layout = plan.shards[server]
        self.optimizer = optimizer.bound(*_trainable_pieces(plan, server))
        self.tensors = tensors
        self._keep_bases = keep_bases or tensors.keep_bases
        self.arena = Arena(self.layout.elements, versions, unlimited=self._keep_bases, allocate=allocate)
        self.staging = Staging(self.layout.elements, staging)
        self._backend = backend
        self._updater = Updater(self.optimizer, tensors, self.layout.trainable, backend)
        self._ordinary = np.float32(ordinary(tensors))
        self._unchecked = unchecked
        # Whose contributions are in the open sum.
        self._summed: list[str] = []
        # The incarnation of each present member.
        self.members: dict[str, int] = {}
        # Left with a contribution that may still be applied: what is remembered for it goes afterwards. A restored
        # shard need not know them: whoever comes back begins anew.
        self._left: set[str] = set()
        # An order is between `prepare` and the end of `finish`.
        self._unfinished = False

    @property
    def version(self) -> int:
        """The newest version; -1 before the first is installed."""
        return self.arena.newest

    @property
    def variants(self) -> list[tuple[Loop, str]]:
        """Every pass over arrays that it runs, for a backend that compiles."""
        return [*self._updater.variants, *((loop, loop.letters) for loop in arithmetic.LOOPS)]

    @property
    def owned(self) -> tuple[list[str], list[str]]:
        """Whose payloads lie in buffers of this shard: those that are staged or on their way in, and those that wait
        side by side for the coming update (none where they are summed)."""
        kept, lent = self._updater.kept, self.staging.lent
        workers = self._summed[-len(kept) :] if kept else []
        own = [who for who, values in zip(workers, kept, strict=True) if not lent(values)]
        return self.staging.owned, own

    @property
    def slots(self) -> dict[str, dict[str, Floats]]:
        """What the optimizer remembers: by worker, or under "" where it does not keep workers apart."""
        return self._updater.slots

    # Payloads

    def refusal(self, ticket: int, worker: str | None = None) -> str | None:
        """Why a payload (of `worker`, if it is known whose) for this ticket cannot be taken; None when it can."""
        opened = self.staging.tickets.get(ticket)
        if opened is None:
            return f"ticket {ticket} is not open here: it was never granted, or is settled or cancelled"
        if worker is not None and worker != opened.worker:
            return f"ticket {ticket} is {opened.worker}'s: expected its payload, got one of {worker!r}"
        if opened.sealed:
            return f"ticket {ticket} is committed: its payload is final"
        return None

    def nonfinite(self, values: Floats, start: int = 0, slot: Slot | None = None) -> str | None:
        """Names the first NaN or Inf in `values`, which begins at element `start`; None if all are finite.

        `slot`: of which it is a piece: that is no ordinary payload any more if one of these numbers is not ordinary.
        """
        if arithmetic.within(values, self._ordinary, self._backend):
            return None
        return self._unusual(values, start, slot)

    def copy_in(self, slot: Slot, source: NDArray[Any], start: int) -> str | None:
        """`nonfinite`, in one pass with the copy of a piece of a payload from `source` into `slot`, from `start` on.

        `source` holds float32, or the bits of bfloat16 as uint16.
        """
        target = slot.values[start : start + source.size]
        if arithmetic.copy_within(target, source, self._ordinary, self._backend):
            return None
        return self._unusual(target, start, slot)

    def _unusual(self, values: Floats, start: int, slot: Slot | None) -> str | None:
        found = arithmetic.first_nonfinite(values, self._backend)
        if found is not None:
            return self._bad(values, found, start)
        if slot is not None:
            slot.ordinary = False
        return None

    def narrow(self, values: Floats) -> NDArray[np.uint16]:
        """A piece of a version as the bits of bfloat16 numbers."""
        bits = np.empty(values.size, np.uint16)
        arithmetic.narrow(bits, values, self._backend)
        return bits

    def _bad(self, values: Floats, found: int, start: int) -> str:
        return f"{values[found]} at {self._where(start + found)}"

    def _where(self, element: int) -> str:
        piece = next(s for s in self.layout.slices if s.offset <= element < s.offset + s.size)
        variable = self.plan.variables[piece.variable]
        inside = element - piece.offset
        if not variable.shape:
            return variable.name
        row = variable.size // variable.shape[0]
        index = np.unravel_index(piece.start * row + inside, variable.shape)
        return f"{variable.name}[{', '.join(str(int(i)) for i in index)}]"

    def begin(
        self, ticket: int, borrowed: BorrowedBuffer | None = None, cut: Callable[[], object] = lambda: None
    ) -> Slot:
        """A slot for the payload of an open, admitted ticket; `borrowed` is the buffer that holds it already."""
        return self.staging.begin(ticket, borrowed, cut)

    # Orders

    def blocked(self, order: Order) -> bool:
        """An Apply without a free buffer: readers must end, or `arena.evict`, before it can be executed."""
        return isinstance(order, Apply) and not self.arena.can_take()

    def execute(self, order: Order) -> None:
        """Execute an order that is not `blocked`. Raises ShardError; nothing has changed then."""
        work = self.prepare(order)
        if work is not None:
            work.compute()
            work.finish()

    def prepare(self, order: Order) -> PendingUpdate | None:
        """The bookkeeping of an order, and what remains to be computed and finished, if anything."""
        match order:
            case Pin():
                self._pin(order)
            case Install(ticket):
                self._install(ticket)
            case Seal(ticket):
                if ticket in self.staging.tickets:
                    self.staging.tickets[ticket].sealed = True
                    # What was read to compute the payload is read.
                    self.arena.unpin(ticket)
            case Fold():
                return self._begun(self._fold(order))
            case Apply():
                return self._begun(self._apply(order))
            case Discard():
                self._discard()
            case Release(ticket):
                self.staging.close(ticket)
                self.arena.forget(ticket)
            case Admit(worker, incarnation):
                self.members[worker] = incarnation
                if worker in self._left:
                    self._left.discard(worker)
                    self._updater.forget(worker)
            case Dismiss(worker, kept):
                self._dismiss(worker, kept=kept)
            case Save() | Note():
                # Whoever executes a Save asks for `state` behind it.
                pass
            case _:
                assert_never(order)
        return None

    def _dismiss(self, worker: str, *, kept: bool) -> None:
        self.members.pop(worker, None)
        if kept:
            # It is expected back, and goes on with what is kept for it alone.
            return
        self._updater.forget(worker)
        if worker in self._summed or any(t.worker == worker for t in self.staging.tickets.values()):
            self._left.add(worker)

    def _pin(self, pin: Pin) -> None:
        self.staging.open(OpenTicket(pin.ticket, pin.worker, pin.turn, pin.initialise))
        if not pin.initialise:
            if pin.version != self.version:
                raise ShardError(
                    f"ticket {pin.ticket} was granted version {pin.version}, but {self.version} is newest"
                )
            self.arena.pin(pin.ticket, pin.version, keep_base=self._keep_bases)

    def _install(self, ticket: int) -> None:
        self._need(ticket)
        values = self.arena.take()
        payload = self.staging.take(ticket)
        values[...] = payload
        self.staging.recycle(payload)
        self.arena.publish(values)

    def _need(self, ticket: int) -> None:
        if not self.staging.holds(ticket):
            raise ShardError(f"the payload of ticket {ticket} is not here")

    def _begun(self, update: PendingUpdate) -> PendingUpdate:
        self._unfinished = True

        def finish() -> None:
            update.finish()
            self._unfinished = False

        return PendingUpdate(update.compute, finish)

    def _fold(self, fold: Fold) -> PendingUpdate:
        self._check(fold)
        worker = self.staging.tickets[fold.ticket].worker
        self._summed.append(worker)
        gap = self._gap(fold.ticket, worker) if fold.compensation else None
        payload = self.staging.take(fold.ticket)

        def compute() -> None:
            self._updater.add(payload, fold.factor, worker, gap, fold.compensation)

        def finish() -> None:
            if not self._updater.keeps(payload):
                self.staging.recycle(payload)
            self.arena.forget(fold.ticket)

        return PendingUpdate(compute, finish)

    def _check(self, fold: Fold) -> None:
        self._need(fold.ticket)
        if fold.compensation and not self._updater.compensates:
            raise ShardError(
                f"ticket {fold.ticket} is to be compensated, but the job's policy names no compensator"
            )

    def _check_apply(self, apply: Apply) -> None:
        if apply.version != self.version + 1:
            raise ShardError(f"apply makes version {apply.version}, but {self.version} is newest")
        for part in apply.parts:
            self._check(part)
        if self._updater.empty and not apply.parts:
            raise ShardError(f"apply of version {apply.version} has no contributions")

    def _gap(self, ticket: int, worker: str) -> Gap:
        now = self.arena.values(self.version)
        assert now is not None
        return self._updater.gap(now, self.arena.base_of(ticket), worker, self.version)

    def _apply(self, apply: Apply) -> PendingUpdate:
        self._check_apply(apply)
        folds = [self._fold(part) for part in apply.parts]
        now, base, workers = self.arena.values(self.version), self.version, list(self._summed)
        assert now is not None
        out = self.arena.take()

        def compute() -> None:
            for fold in folds:
                fold.compute()
            # An overflow is found below.
            with np.errstate(all="ignore"):
                finite = self._updater.step(now, out, base, apply.scale, apply.lr_scale)
            if not (finite or self._unchecked):
                raise NonfiniteError(self._unfit(apply.version, out, workers))

        def finish() -> None:
            for fold in folds:
                fold.finish()
            for values in self._updater.clear():
                self.staging.recycle(values)
            self._summed.clear()
            if self._left:
                self._forget_left(workers)
            self.arena.publish(out)

        return PendingUpdate(compute, finish)

    def _forget_left(self, workers: Collection[str]) -> None:
        """An update of `workers` was made: what it made anew for one that has left goes again, and for good with that
        worker's last payload."""
        held = {opened.worker for opened in self.staging.tickets.values()}
        for worker in self._left.intersection(workers):
            self._updater.forget(worker)
        self._left &= held

    def _discard(self) -> None:
        for values in self._updater.clear():
            self.staging.recycle(values)
        self._summed.clear()

    def rehearse(self, apply: Apply) -> tuple[bool, float]:
        """Would everything that this update changes be finite, and what would be the largest magnitude in it?

        Computed on copies, with the operations of the update itself: nothing changes. It needs memory for the
        payloads, for what the optimizer and the compensator remember, and for a version. Raises ShardError as
        the update would.
        """
        self._check_apply(apply)
        now = self.arena.values(self.version)
        assert now is not None
        parts = [self.staging.tickets[part.ticket] for part in apply.parts]
        updater = self._updater.copy([part.worker for part in parts])
        for part, opened in zip(apply.parts, parts, strict=True):
            gap = None
            if part.compensation:
                gap = updater.gap(now, self.arena.base_of(part.ticket), opened.worker, self.version)
            payload = self.staging.payload(part.ticket).copy()
            with np.errstate(all="ignore"):
                updater.add(payload, part.factor, opened.worker, gap, part.compensation)
        out = np.empty(self.layout.elements, np.float32)
        with np.errstate(all="ignore"):
            finite = updater.step(now, out, self.version, apply.scale, apply.lr_scale)
        found = [arithmetic.largest(each) for each in (out, *updater.arrays)]
        if not (finite and all(map(math.isfinite, found))):
            return False, math.inf
        return True, max(found)

    def _unfit(self, version: int, values: Floats, workers: list[str]) -> str:
        """Why a version is not published."""
        found = self.nonfinite(values) or "numbers beyond float32 in what the optimizer remembers"
        gradients = ", ".join(dict.fromkeys(workers))
        return (
            f"version {version} would not be finite ({found}); its gradients came from {gradients}, and were finite: "
            "the learning rate may be too high, or one of these workers sends what it should not"
        )

    # State

    def state(self) -> ShardState:
        """A copy of all that it holds, between two orders: a pass over memory. Raises ShardError within one.

        Payloads that are still on their way in are not part of it, nor are readers: a worker pushes and
        pulls again what it has no answer to.
        """
        if self._unfinished:
            raise ShardError("an order is under way: expected state() between two orders")
        return save(self._parts)

    def restore(self, state: ShardState) -> None:
        """Go on from that state, in a new shard of the same plan, server, optimizer and tensors: the same
        orders and payloads give the same bits then. Arrays are copied. Raises StateError, with nothing
        changed, for a state that does not fit; for one of another number of servers see `reshard`.
        """
        take_up(state, self._parts)

    @property
    def _parts(self) -> ShardParts:
        plan, optimizer, tensors = self.plan, self.optimizer, self.tensors
        return ShardParts(
            plan,
            self.layout,
            optimizer,
            tensors,
            self.members,
            self._summed,
            self.arena,
            self.staging,
            self._updater,
        )


def _trainable_pieces(plan: Plan, server: int) -> tuple[list[str], list[tuple[str, int, int]]]:
    """The names of all trainable variables, and (name, start, stop) of each piece of one in this server's arena."""
    names = [spec.name for spec in plan.variables]
    layout = plan.shards[server]
    pieces = [(names[p.variable], p.offset, p.offset + p.size) for p in layout.slices]
    trained = [piece for piece in pieces if piece[1] < layout.trainable]
    return [spec.name for spec in plan.variables if spec.kind == "trainable"], trained
