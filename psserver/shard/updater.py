"""From contributions to the next version: compensator, accumulator, optimizer, and their memory."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend, Variant
from psserver.optimizers import Optimizer, blocks
from psserver.policies import TensorParts
from psserver.shard import arithmetic
from psserver.shard.accumulator import PerWorker, Share, accumulator_for
from psserver.shard.aggregators import build_aggregator
from psserver.shard.compensators import Gap, build_compensator
from psserver.shard.facts import Marks, either
from psserver.shard.fragments import Turn

Floats = NDArray[np.float32]


class Updater:
    """Adds contributions and makes the next version.

    Payloads are float32 of shape (elements,): `trainable` of them are a gradient, the rest changes of state. `slots`:
    the optimizer's arrays by name, under the worker's name if each worker has a set (made at its first contribution),
    else under "". `memory`: the compensator's arrays by name.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        tensors: TensorParts,
        trainable: int,
        backend: Backend = ALONE,
        turns: Sequence[Turn] = (),
    ) -> None:
        """Prepare updates. `turns`: of the groups of rows, if an update changes one of several."""
        self._optimizer, self._turns = optimizer, turns
        self._end = trainable
        self._backend = backend
        # Whether steps measure the gradient, and the square of the L2 norm of the last one; None: not known.
        self.measures = False
        self.square: float | None = None
        self.slots: dict[str, dict[str, Floats]] = {}
        if not optimizer.per_worker:
            self.slots[""] = optimizer.init(trainable)
        self._compensator = build_compensator(tensors)
        self.memory = self._compensator.init(trainable) if self._compensator else {}
        # What has a number per weight in the memory, as it was before the coming update; of use while `_moved`.
        self._before: dict[str, Floats] = {}
        self._moved = False
        self.accumulator = accumulator_for(
            build_aggregator(tensors), per_worker=optimizer.per_worker, trainable=trainable
        )

    @property
    def trainable(self) -> int:
        """The number of elements that optimizers move."""
        return self._end

    @property
    def compensates(self) -> bool:
        """True if the job's policy names a compensator."""
        return self._compensator is not None

    @property
    def in_turn(self) -> bool:
        """True if an update changes one of several groups of rows."""
        return bool(self._turns)

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of arrays in `memory` that are the same on every server; all others have a number per weight."""
        return self._compensator.constants if self._compensator else ()

    @property
    def empty(self) -> bool:
        """True if nothing has been added since the last step."""
        return self.accumulator.empty

    @property
    def variants(self) -> list[Variant]:
        """The passes over arrays, to be compiled."""
        step = self._optimizer.last_step(self._optimizer.init(0))
        own = self._compensator.variants(step) if self._compensator else []
        return [*self._optimizer.variants(), *own]

    def gap(self, now: Floats, base: Floats, worker: str, version: int) -> Gap:
        """Return the gap of a contribution of `worker` that started from `base` while `now` is newest."""
        step = self._optimizer.last_step(self.slots_of(worker))
        return Gap(now[: self._end], base[: self._end], self._optimizer.rate(version), step)

    def add(
        self,
        payload: Floats,
        factor: float,
        worker: str,
        gap: Gap | None,
        strength: float,
        mixed: float = 1.0,
    ) -> None:
        """Add a contribution, compensated if there is a gap. Its buffer may be overwritten or kept.

        `mixed`: the weight of its state (`psserver.shard.mixing`).
        """
        # A factor turns a gradient round, never a change of state.
        arithmetic.scale(payload[self._end :], mixed if factor >= 0 else -mixed)
        if gap is not None and self._compensator is not None:
            gradient = payload[: self._end]
            self._remember()
            self._compensator.correct(gradient, gap, np.float32(strength), self.memory, self._backend)
        self.accumulator.add(payload, factor, worker, self._backend)

    def _remember(self) -> None:
        """Copy the compensator's memory before the coming update first changes it."""
        if self._moved:
            return
        for name, array in self.memory.items():
            if name not in self.constants:
                np.copyto(self._before.setdefault(name, np.empty_like(array)), array)
        self._moved = True

    def _overflown(self) -> Marks:
        """Return the elements whose memory is not finite."""
        found: Marks = None
        for name in self._before if self._moved else ():
            if arithmetic.first_nonfinite(self.memory[name], self._backend) is not None:
                found = either(found, ~np.isfinite(self.memory[name]))
        return found

    @property
    def kept(self) -> list[Floats]:
        """The contributions that lie side by side until the next step."""
        return self.accumulator.payloads

    def keeps(self, payload: Floats) -> bool:
        """Return True if the buffer is needed until `clear`."""
        return self.accumulator.keeps(payload)

    def clear(self) -> list[Floats]:
        """Start the next update. Return the buffers that were kept."""
        self._moved = False
        return self.accumulator.clear()

    def changing(self, version: int, size: int) -> int:
        """Return how many of `size` elements the update from `version` can change."""
        if not self._turns:
            return size
        return self._turns[version % len(self._turns)].part.layout.elements + size - self._end

    def step(self, now: Floats, out: Floats, version: int, scale: float, lr_scale: float) -> Marks:
        """Write version ``version + 1`` into `out`, from version `version` in `now` and everything added.

        Where a new weight, a slot or a number of the compensator's memory would not be finite, all of them keep the
        values from before the update; so does a number of layers' state. Return which elements were so kept back.
        """
        total, end, good = self.accumulator.total(), self._end, True
        if end < now.size:
            # State of layers, which most models do not have.
            arithmetic.scale(total.values[end:], total.pending)
            arithmetic.add_mean(now[end:], total.values[end:], total.factors, out[end:])
            good = arithmetic.first_nonfinite(out[end:], self._backend) is None
        if isinstance(self.accumulator, PerWorker):
            shares: Sequence[Share] = self.accumulator.shares
        else:
            shares = [Share(total.values, total.pending, "")]
            if self.measures:
                self.square = _square(total.values[:end], total.pending * scale)
        overflown = self._overflown()
        if overflown is not None:
            # So the optimizer keeps these elements back.
            shares[0].values[:end][overflown] = np.nan
        # Of several workers one may keep back an element that others have moved.
        several = {share.worker for share in shares} if len(shares) > 1 else set()
        before = {
            worker: {name: slot.copy() for name, slot in self.slots_of(worker).items()} for worker in several
        }
        if self._turns:
            stepped = self._step_of_group(now[:end], out[:end], shares[0], version, scale, lr_scale)
            marked: Marks = None
        else:
            stepped, marked = self._steps(now[:end], out[:end], shares, version, scale, lr_scale)
        if good and stepped and overflown is None:
            return None
        kept = ~np.isfinite(out)
        for more in (marked, overflown):
            if more is not None:
                kept[:end] |= more
        np.copyto(out, now, where=kept)
        for worker, slots in before.items():
            for name, slot in slots.items():
                np.copyto(self.slots_of(worker)[name], slot, where=kept[:end])
        for name, array in self._before.items() if self._moved else ():
            np.copyto(self.memory[name], array, where=kept[:end])
        return kept

    def _steps(
        self,
        now: Floats,
        out: Floats,
        shares: Sequence[Share],
        version: int,
        scale: float,
        lr_scale: float,
    ) -> tuple[bool, Marks]:
        """Take one step after the other. Return False, and what was kept back before the last step, if anything was."""
        good, marked = True, None
        spare = np.empty_like(out) if len(shares) > 1 else out
        # One worker's step after another, in the order of the log; the last one ends in `out`.
        for left, share in zip(range(len(shares) - 1, -1, -1), shares, strict=True):
            target = spare if left % 2 else out
            # No check: arrays have the plan's sizes and buffers of their own.
            stepped = self._optimizer.advance(
                now,
                share.values[: self._end],
                target,
                self.slots_of(share.worker),
                version=version,
                lr_scale=lr_scale,
                factor=share.factor,
                scale=scale,
                backend=self._backend,
            )
            if not stepped and left:
                marked = either(marked, ~np.isfinite(target))
            good, now = good and stepped, target
        return good, marked

    def _step_of_group(
        self, now: Floats, out: Floats, share: Share, version: int, scale: float, lr_scale: float
    ) -> bool:
        """Make the next version, which differs in one group. The optimizer counts that group's own updates."""
        turn = self._turns[version % len(self._turns)]
        take, slots = turn.part.take, self.slots_of("")
        made, moved = np.empty(turn.part.layout.elements, np.float32), {n: take(a) for n, a in slots.items()}
        good = turn.optimizer.advance(
            *(take(now), take(share.values), made, moved),
            version=version // len(self._turns),
            lr_scale=lr_scale,
            factor=share.factor,
            scale=scale,
            backend=self._backend,
        )
        out[...] = now
        turn.part.put(out, made)
        for name, slot in slots.items():
            turn.part.put(slot, moved[name])
        return good

    def forget(self, worker: str) -> None:
        """Drop the slots of a worker that has left, if it had a set of its own.

        If it returns, or a contribution of it is still to be applied, it gets new slots.
        """
        if self._optimizer.per_worker:
            self.slots.pop(worker, None)

    def slots_of(self, worker: str) -> dict[str, Floats]:
        """Return the optimizer's slots for a gradient of `worker`."""
        key = worker if self._optimizer.per_worker else ""
        if key not in self.slots:
            self.slots[key] = self._optimizer.init(self._end)
        return self.slots[key]


def _square(values: Floats, factor: float) -> float | None:
    """Return the sum of the squares of ``values * factor``, block by block in order; None if it is not finite."""
    found = sum(blocks.squares(values[block]) for block in blocks.pieces(values.size)) * factor * factor
    return found if math.isfinite(found) else None
