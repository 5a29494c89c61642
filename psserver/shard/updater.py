"""From contributions to the next version: compensator, accumulator, optimizer, and their memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend, Variant
from psserver.optimizers import Optimizer
from psserver.policies import TensorParts
from psserver.shard import arithmetic
from psserver.shard.accumulator import Total, accumulator_for
from psserver.shard.aggregators import build_aggregator
from psserver.shard.compensators import Gap, build_compensator
from psserver.shard.facts import Marks, either
from psserver.shard.fragments import GroupTurn

Floats = NDArray[np.float32]


class Updater:
    """Adds contributions and makes the next version.

    Payloads are float32 of shape (elements,): `trainable` of them are a gradient, the rest changes of state. `slots`:
    the optimizer's arrays by name. `memory`: the compensator's arrays by name.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        tensors: TensorParts,
        trainable: int,
        backend: Backend = ALONE,
        turns: Sequence[GroupTurn] = (),
    ) -> None:
        """Prepare updates. `turns`: of the groups of rows, if an update changes one of several."""
        self._optimizer, self._turns = optimizer, turns
        self._end = trainable
        self._backend = backend
        self.slots: dict[str, Floats] = optimizer.init(trainable)
        self._compensator = build_compensator(tensors)
        self.memory = self._compensator.init(trainable) if self._compensator else {}
        # What has a number per weight in the memory, as it was before the coming update; of use while `_moved`.
        self._before: dict[str, Floats] = {}
        self._moved = False
        self.accumulator = accumulator_for(build_aggregator(tensors), trainable)

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

    def gap(self, now: Floats, base: Floats, version: int) -> Gap:
        """Return the gap of a contribution that started from `base` while `now` is newest."""
        step = self._optimizer.last_step(self.slots)
        return Gap(now[: self._end], base[: self._end], self._optimizer.rate(version), step)

    def add(
        self,
        payload: Floats,
        factor: float,
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
        self.accumulator.add(payload, factor, self._backend)

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
        overflown = self._overflown()
        if overflown is not None:
            # So the optimizer keeps these elements back.
            total.values[:end][overflown] = np.nan
        step = self._step_of_group if self._turns else self._step
        stepped = step(now[:end], out[:end], total, version, scale, lr_scale)
        if good and stepped and overflown is None:
            return None
        kept = ~np.isfinite(out)
        if overflown is not None:
            kept[:end] |= overflown
        np.copyto(out, now, where=kept)
        for name, array in self._before.items() if self._moved else ():
            np.copyto(self.memory[name], array, where=kept[:end])
        return kept

    def _step(
        self, now: Floats, out: Floats, total: Total, version: int, scale: float, lr_scale: float
    ) -> bool:
        """Take the optimizer's step. Return False if it keeps an element back."""
        # No check: arrays have the plan's sizes and buffers of their own.
        return self._optimizer.advance(
            *(now, total.values[: self._end], out, self.slots),
            version=version,
            lr_scale=lr_scale,
            factor=total.pending,
            scale=scale,
            backend=self._backend,
        )

    def _step_of_group(
        self, now: Floats, out: Floats, total: Total, version: int, scale: float, lr_scale: float
    ) -> bool:
        """Make the next version, which differs in one group. The optimizer counts that group's own updates."""
        turn = self._turns[version % len(self._turns)]
        take, slots = turn.part.take, self.slots
        made, moved = np.empty(turn.part.layout.elements, np.float32), {n: take(a) for n, a in slots.items()}
        good = turn.optimizer.advance(
            *(take(now), take(total.values), made, moved),
            version=version // len(self._turns),
            lr_scale=lr_scale,
            factor=total.pending,
            scale=scale,
            backend=self._backend,
        )
        out[...] = now
        turn.part.put(out, made)
        for name, slot in slots.items():
            turn.part.put(slot, moved[name])
        return good
