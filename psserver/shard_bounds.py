"""Proof, without asking a shard, that an update of ordinary payloads is finite.

The coordinator decides an update before the shards compute it. If bounds on all numbers prove that it is finite, it
need not ask them first. The bounds advance with every decided update, in plain floats, so they are a function of the
log. They only grow, slowly. When they no longer prove anything, the shards are asked once, and the magnitudes that they
report become the new bounds.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from psserver.optimizers import Optimizer, OptimizerError
from psserver.optimizers.magnitudes import LIMIT, ROUNDING, after
from psserver.policies import TensorParts
from psserver.shard.payload_checks import ordinary
from pswire.decisions.entries import Apply

# The least normal float32: compensators treat smaller squares as zero, and divisors are at least this.
TINY: Final = 2.0**-126


class ShardBounds:
    """A `psserver.coordinator.assurance.Assurance` for the job's shards.

    `optimizer`: None until it is known, which is before version 0 exists.
    """

    def __init__(self, tensors: TensorParts, optimizer: Optimizer | None = None) -> None:
        self.optimizer = optimizer
        self._tensors = tensors
        self._ordinary = ordinary(tensors)
        # "x": weights and state; the optimizer's slots by name; "": the compensator's memory.
        self._bounds: Mapping[str, float] = {}

    def installed(self, ordinary: bool) -> None:
        assert self.optimizer is not None
        first, names = self.optimizer.rule.initial, self.optimizer.slots
        starts = dict(first) if isinstance(first, Mapping) else dict.fromkeys(names, first)
        slots = {name: abs(starts.get(name, 0.0)) * ROUNDING for name in names}
        x = self._ordinary if ordinary else math.inf
        self._bounds = {"x": x, "": 0.0 if ordinary else math.inf, **slots}

    def state(self) -> dict[str, float]:
        """Return the bounds, for `restore`."""
        return dict(self._bounds)

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on with the bounds of another one, which has taken the same updates."""
        self._bounds = dict(state)

    def measured(self, largest: float) -> None:
        self._bounds = dict.fromkeys(self._bounds, largest)

    def certain(self, update: Apply) -> bool:
        optimizer = self.optimizer
        if optimizer is None or not self._bounds["x"] <= LIMIT:
            return False
        try:
            rate = optimizer.rate(update.version - 1, update.lr_scale)
        except OptimizerError:
            # The shards refuse this update, as always.
            return True
        found = self._after(optimizer, update, rate)
        if found is None:
            return False
        self._bounds = found
        return True

    def _after(self, optimizer: Optimizer, update: Apply, rate: np.float32) -> Mapping[str, float] | None:
        bounds, scale = dict(self._bounds), abs(update.scale)
        factors = [abs(part.factor) for part in update.parts]
        gradients: list[float] = []
        for part, factor in zip(update.parts, factors, strict=True):
            strength = part.compensation
            # Most parts have nothing to compensate.
            gradient = (
                self._compensated(optimizer, strength, float(rate), bounds) if strength else self._ordinary
            )
            gradients.append(gradient * factor)
        total = sum(gradients) * ROUNDING
        weight = factors[0] if len(factors) == 1 else abs(sum(part.factor for part in update.parts))
        # The mean change of state: nothing moves where the weights are 0, and it is unknown where they nearly cancel.
        moved = 0.0 if weight == 0 else len(factors) * sum(factors) * self._ordinary / weight
        if weight != 0 and weight < TINY:
            return None
        if not (
            total <= LIMIT and total * max(scale, 1.0) <= LIMIT and bounds[""] <= LIMIT and moved <= LIMIT
        ):
            return None
        state = bounds["x"] + moved * ROUNDING
        # An optimizer with slots for each worker takes one step per contribution; any other takes one step in all.
        steps = [g * scale for g in gradients] if optimizer.per_worker else [total * scale]
        memory = bounds.pop("")
        found: Mapping[str, float] = bounds
        # A group of rows counts its own updates.
        step = 1 + (update.version - 1) // self._tensors.fragments
        for gradient in steps:
            moved_on = after(optimizer.rule, rate, step, gradient * ROUNDING, found)
            if moved_on is None:
                return None
            found = moved_on
        if self._tensors.fragments > 1:
            # The other groups stay as they are.
            found = {name: max(bound, bounds[name]) for name, bound in found.items()}
        return {**found, "x": max(found["x"], state), "": memory} if state <= LIMIT else None

    def _compensated(
        self, optimizer: Optimizer, strength: float, rate: float, bounds: dict[str, float]
    ) -> float:
        """Bound one compensated gradient, and advance the bound on the memory. Formulas: `compensators`."""
        g, knobs = self._ordinary, self._tensors.knobs
        if not strength or self._tensors.compensator is None:
            return g
        gap = 2 * bounds["x"] * max(1.0, abs(strength)) * ROUNDING
        if not gap * g * g <= LIMIT:
            return math.inf
        match self._tensors.compensator:
            case "taylor":
                return g + gap * g * g
            case "adaptive-taylor":
                bounds[""] = max(bounds[""], g * g) * ROUNDING
                least = math.sqrt(knobs["epsilon"]) if knobs["epsilon"] > 2 * TINY else 0.0
                return g + gap * g * g / least if least else math.inf
            case "gap-aware":
                return self._gap_aware(optimizer, g, rate, bounds)
        return math.inf

    def _gap_aware(self, optimizer: Optimizer, g: float, rate: float, bounds: dict[str, float]) -> float:
        """Bound a gradient that only shrinks.

        Its divisor is finite or infinite, but a number, as long as the size of a usual step is finite: the rate times
        the root of the mean of squares over its weight, which is at least 1 - decay.
        """
        slot = optimizer.rule.step_slot
        square = (g if slot is None else bounds[slot]) ** 2
        bounds[""] = max(bounds[""], square, rate) * ROUNDING
        gain = 1 - self._tensors.knobs["decay"]
        usual = bounds[""] / gain if gain > 2.0**-24 else math.inf
        # bounds[""] also bounds the largest rate so far.
        return g if usual <= LIMIT and math.sqrt(usual) * (1 + bounds[""]) <= LIMIT else math.inf
