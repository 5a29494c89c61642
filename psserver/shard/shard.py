"""The shard: stages payloads and executes orders, strictly in their order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import NUMPY, Backend, Optimizer
from psserver.shard import arithmetic
from psserver.shard.arena import Allocate, Arena, plain
from psserver.shard.orders import Apply, Fold, Install, Note, Order, Pin, Release, Seal
from psserver.shard.staging import Loan, OpenTicket, Slot, Staging
from pswire.plan import Plan

Floats = NDArray[np.float32]


class ShardError(RuntimeError):
    """An order that cannot be executed: the log and this shard's state disagree."""


@dataclass(slots=True)
class OpenSum:
    """Contributions summed so far for the coming update: ``values * pending`` is the sum of factor * payload.

    The first payload's factor is left pending, so that no pass is spent on it alone.
    """

    values: Floats
    factors: float
    pending: float


@dataclass(frozen=True, slots=True)
class Work:
    """The heavy half of an order. `compute` touches only arrays that nobody else writes."""

    compute: Callable[[], None]
    finish: Callable[[], None]


class Shard:
    """Arrays of one server: arena versions, staging, open sum, optimizer state.

    A payload is one flat float32 array in the layout of the plan: the
    trainable part (weights, or a gradient), then the state part (values, or
    deltas). Not thread-safe; the caller serialises everything but `Work.compute`.
    """

    def __init__(
        self,
        plan: Plan,
        server: int,
        optimizer: Optimizer,
        *,
        versions: int = 3,
        staging: int = 4,
        keep_bases: bool = False,
        backend: Backend = NUMPY,
        allocate: Allocate = plain,
    ) -> None:
        self.plan = plan
        self.layout = plan.shards[server]
        self.optimizer = optimizer
        self.arena = Arena(self.layout.elements, versions, unlimited=keep_bases, allocate=allocate)
        self.staging = Staging(self.layout.elements, staging)
        self._keep_bases = keep_bases
        self._backend = backend
        self._slots = optimizer.init(self.layout.trainable)
        self._sum: OpenSum | None = None

    @property
    def version(self) -> int:
        """The newest version; -1 before the first is installed."""
        return self.arena.newest

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

    def nonfinite(self, values: Floats, start: int = 0) -> str | None:
        """Names the first NaN or Inf in `values`, which begins at element `start`; None if all are finite."""
        found = arithmetic.first_nonfinite(values, self._backend)
        return None if found is None else self._bad(values, found, start)

    def copy_in(self, target: Floats, source: NDArray[Any], start: int) -> str | None:
        """`nonfinite`, in one pass with the copy of a piece of a payload from `source` to `target`.

        `source` holds float32, or the bits of bfloat16 as uint16, of the same number of elements.
        """
        copy = arithmetic.copy_finite if source.dtype == np.float32 else arithmetic.widen_finite
        found = copy(target, source, self._backend)
        return None if found is None else self._bad(target, found, start)

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

    def begin(self, ticket: int, loan: Loan | None = None) -> Slot:
        return self.staging.begin(ticket, loan)

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

    def prepare(self, order: Order) -> Work | None:
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
                return self._fold(order)
            case Apply():
                return self._apply(order)
            case Release(ticket):
                self.staging.close(ticket)
                self.arena.forget(ticket)
            case Note():
                pass
        return None

    def _pin(self, pin: Pin) -> None:
        self.staging.tickets[pin.ticket] = OpenTicket(pin.ticket, pin.worker, pin.turn, pin.initialise)
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

    def _fold(self, fold: Fold) -> Work:
        self._need(fold.ticket)
        base = self.arena.base_of(fold.ticket) if fold.compensation else None
        now = self.arena.values(self.version)
        payload = self.staging.take(fold.ticket)

        def compute() -> None:
            self._add(payload, fold, now, base)

        def finish() -> None:
            if self._sum is not None and self._sum.values is not payload:
                self.staging.recycle(payload)
            self.arena.forget(fold.ticket)

        return Work(compute, finish)

    def _add(self, payload: Floats, fold: Fold, now: Floats | None, base: Floats | None) -> None:
        if base is not None and now is not None:
            end = self.layout.trainable
            arithmetic.compensate(payload[:end], now[:end], base[:end], fold.compensation, self._backend)
        if self._sum is None:
            # The first contribution's buffer becomes the sum: nothing is copied.
            self._sum = OpenSum(payload, fold.factor, pending=fold.factor)
        else:
            arithmetic.fold(self._sum.values, self._sum.pending, payload, fold.factor, self._backend)
            self._sum.pending = 1.0
            self._sum.factors += fold.factor

    def _apply(self, apply: Apply) -> Work:
        if apply.version != self.version + 1:
            raise ShardError(f"apply makes version {apply.version}, but {self.version} is newest")
        for part in apply.parts:
            self._need(part.ticket)
        if self._sum is None and not apply.parts:
            raise ShardError(f"apply of version {apply.version} has no contributions")
        folds = [self._fold(part) for part in apply.parts]
        now = self.arena.values(self.version)
        assert now is not None
        out = self.arena.take()

        def compute() -> None:
            for fold in folds:
                fold.compute()
            self._step(now, out, apply)

        def finish() -> None:
            for fold in folds:
                fold.finish()
            assert self._sum is not None
            total, self._sum = self._sum.values, None
            self.staging.recycle(total)
            self.arena.publish(out)

        return Work(compute, finish)

    def _step(self, now: Floats, out: Floats, apply: Apply) -> None:
        assert self._sum is not None
        end, total = self.layout.trainable, self._sum.values
        arithmetic.scale(total[end:], self._sum.pending)
        arithmetic.add_mean(now[end:], total[end:], self._sum.factors, out[end:])
        self.optimizer.update(
            now[:end],
            total[:end],
            out[:end],
            self._slots,
            version=self.version,
            lr_scale=apply.lr_scale,
            factor=self._sum.pending,
            scale=apply.scale,
            backend=self._backend,
        )
