"""Which updates are finite whatever their payloads hold, as long as these are ordinary: without asking a shard.

The coordinator decides an update before the shards compute it. Where bounds on all numbers prove that it is finite, it
need not ask them first. The bounds move on with every update that is decided, in plain floats: they are a function of
the log. They only grow, slowly; where they no longer prove anything the shards are asked once, and the answer,
what they really hold, is what the bounds are from there on.
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

# The least float32 that is not subnormal: what squares are taken for zero below, and a divisor is at least.
TINY: Final = 2.0**-126


class ShardBounds:
    """A `psserver.coordinator.assurance.Assurance` of the job's shards.

    `optimizer`: None as long as nobody knows it; it is known before version 0 is.
    """

    def __init__(self, tensors: TensorParts, optimizer: Optimizer | None = None) -> None:
        self.optimizer = optimizer
        self._tensors = tensors
        self._ordinary = ordinary(tensors)
        # "x": weights and state; the optimizer's slots; "": what the compensator remembers.
        self._bounds: Mapping[str, float] = {}

    def installed(self, ordinary: bool) -> None:
        assert self.optimizer is not None
        first, names = self.optimizer.rule.initial, self.optimizer.slots
        starts = dict(first) if isinstance(first, Mapping) else dict.fromkeys(names, first)
        slots = {name: abs(starts.get(name, 0.0)) * ROUNDING for name in names}
        x = self._ordinary if ordinary else math.inf
        self._bounds = {"x": x, "": 0.0 if ordinary else math.inf, **slots}

    def measured(self, largest: float) -> None:
        self._bounds = dict.fromkeys(self._bounds, largest)

    def certain(self, update: Apply) -> bool:
        optimizer = self.optimizer
        if optimizer is None or not self._bounds["x"] <= LIMIT:
            return False
        try:
            rate = optimizer.rate(update.version - 1, update.lr_scale)
        except OptimizerError:
            # The shards refuse it, as they always do.
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
            # Of nearly every part there is nothing to compensate.
            gradient = (
                self._compensated(optimizer, strength, float(rate), bounds) if strength else self._ordinary
            )
            gradients.append(gradient * factor)
        total = sum(gradients) * ROUNDING
        weight = factors[0] if len(factors) == 1 else abs(sum(part.factor for part in update.parts))
        # The mean change of state; nothing moves where the weights are 0, and nobody knows where they nearly cancel.
        moved = 0.0 if weight == 0 else len(factors) * sum(factors) * self._ordinary / weight
        if weight != 0 and weight < TINY:
            return None
        if not (
            total <= LIMIT and total * max(scale, 1.0) <= LIMIT and bounds[""] <= LIMIT and moved <= LIMIT
        ):
            return None
        state = bounds["x"] + moved * ROUNDING
        # An optimizer with slots for each worker takes a step for each contribution; any other one step for all.
        steps = [g * scale for g in gradients] if optimizer.per_worker else [total * scale]
        memory = bounds.pop("")
        found: Mapping[str, float] = bounds
        for gradient in steps:
            moved_on = after(optimizer.rule, rate, update.version, gradient * ROUNDING, found)
            if moved_on is None:
                return None
            found = moved_on
        return {**found, "x": max(found["x"], state), "": memory} if state <= LIMIT else None

    def _compensated(
        self, optimizer: Optimizer, strength: float, rate: float, bounds: dict[str, float]
    ) -> float:
        """A bound on one gradient behind the compensator; that on its memory moves on. Formulas: `compensators`."""
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
        """The gradient only shrinks. Its divisor is a number, if infinite, as long as the size of a usual step is
        finite: the root of the mean of squares over its weight, which is at least 1 - decay, times the rate."""
        slot = optimizer.rule.step_slot
        square = (g if slot is None else bounds[slot]) ** 2
        bounds[""] = max(bounds[""], square, rate) * ROUNDING
        gain = 1 - self._tensors.knobs["decay"]
        usual = bounds[""] / gain if gain > 2.0**-24 else math.inf
        # The largest rate so far is among what is bounded.
        return g if usual <= LIMIT and math.sqrt(usual) * (1 + bounds[""]) <= LIMIT else math.inf
