"""Compensators: g' = f(g, x_now, x_base), in place, for one stale contribution at a time.

The order of operations is part of the contract (psserver.shard.arithmetic). A compensator's memory is a dict of float32
arrays, like an optimizer's slots; it advances with every contribution, in the order of the log. Running means start at
0, and so does the sum of their weights, by which a mean without bias is divided. Squares below the least normal float32
count as 0 (see psserver.optimizers.blocks.clear_subnormals).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from psserver.fast import ALONE, Backend, Variant, loop
from psserver.policies import TensorParts
from psserver.shard import arithmetic

Floats = NDArray[np.float32]
Memory = dict[str, Floats]
Scalar = np.float32

TINY = np.finfo(np.float32).tiny
ONE = np.float32(1)


@dataclass(frozen=True, slots=True)
class Gap:
    """The weights that a contribution meets, those it started from, and how fast they move.

    `rate`: the scheduled learning rate of the update that the contribution goes into. `step`: the last step, if the
    optimizer keeps one.
    """

    now: Floats
    base: Floats
    rate: np.float32 = ONE
    step: Floats | None = None


class Compensator(Protocol):
    """Arrays are flat float32 of one length; only the gradient and the memory are written.

    `constants`: names of memory arrays that are the same on every server. All others have one number per weight and
    are divided among servers as the weights are.
    """

    @property
    def constants(self) -> tuple[str, ...]: ...

    def init(self, size: int) -> Memory:
        """Return the initial memory for `size` weights."""
        ...

    def correct(
        self, gradient: Floats, gap: Gap, strength: np.float32, memory: Memory, backend: Backend = ALONE
    ) -> None:
        """Correct `gradient` in place by `strength`, which is not 0."""
        ...

    def variants(self, step: Floats | None) -> list[Variant]:
        """Return the passes beyond those of every server, to be compiled."""
        ...


class Taylor:
    """g' = g + (x_now - x_base) g g strength: DC-ASGD-c (Zheng et al. 2017, eq. 10)."""

    constants: ClassVar[tuple[str, ...]] = ()

    def init(self, size: int) -> Memory:
        return {}

    def correct(
        self, gradient: Floats, gap: Gap, strength: np.float32, memory: Memory, backend: Backend = ALONE
    ) -> None:
        arithmetic.compensate(gradient, gap.now, gap.base, float(strength), backend)

    def variants(self, step: Floats | None) -> list[Variant]:
        # Compiled by every server: see psserver.shard.arithmetic.LOOPS.
        return []


@dataclass(frozen=True, slots=True)
class AdaptiveTaylor:
    """DC-ASGD-a (Zheng et al. 2017, section 5): a lambda for each weight, from the size of its gradients.

    ``m' = m decay + g g (1 - decay)``,
    ``g' = g + (x_now - x_base) g g strength / sqrt(m' + epsilon)``,
    products and quotients from left to right. The paper's m at step t includes the gradient of step t.
    """

    constants: ClassVar[tuple[str, ...]] = ()

    decay: float
    epsilon: float

    def init(self, size: int) -> Memory:
        return {"mean_square": np.zeros(size, np.float32)}

    def correct(
        self, gradient: Floats, gap: Gap, strength: np.float32, memory: Memory, backend: Backend = ALONE
    ) -> None:
        arrays = (gradient, gap.now, gap.base, memory["mean_square"])
        kept, gain = np.float32(self.decay), np.float32(1 - self.decay)
        scalars = (strength, kept, gain, np.float32(self.epsilon), TINY)
        backend.run(adaptive_taylor_loop, arrays, scalars)

    def variants(self, step: Floats | None) -> list[Variant]:
        return [(adaptive_taylor_loop, adaptive_taylor_loop.letters)]


@loop("wrrwfffff")
def adaptive_taylor_loop(
    gradient: Floats,
    now: Floats,
    base: Floats,
    mean: Floats,
    strength: Scalar,
    kept: Scalar,
    gain: Scalar,
    epsilon: Scalar,
    tiny: Scalar,
) -> None:
    """Compute the formula of AdaptiveTaylor."""
    for i in range(gradient.size):
        g = gradient[i]
        m = mean[i] * kept + g * g * gain
        mean[i] = np.float32(0) if m < tiny else m
        gradient[i] = g + (now[i] - base[i]) * g * g * strength / np.sqrt(mean[i] + epsilon)


@dataclass(frozen=True, slots=True)
class GapAwareCompensator:
    """Gap-Aware (Barkai et al. 2020): divides a gradient by how many usual steps its weights have moved.

    ``r' = r decay + u u (1 - decay)``, ``w' = w decay + (1 - decay)``,
    ``C = unit sqrt(r' / w') + rate_max epsilon``,
    ``g' = g / (1 + |x_now - x_base| strength / C)``.

    u is the gradient and unit the largest learning rate so far, rate_max. With an optimizer that keeps its last step,
    u is that step and unit is 1: the paper's momentum times the learning rate, with the rate of each step. r' / w' is
    the mean without bias: w' = 1 - decay ** t. As long as the learning rate has always been 0, nothing has moved, and g
    stays as it is.
    """

    constants: ClassVar[tuple[str, ...]] = ("weight", "rate_max")

    decay: float
    epsilon: float

    def init(self, size: int) -> Memory:
        memory = {"mean_square": np.zeros(size, np.float32)}
        return memory | {name: np.zeros(1, np.float32) for name in self.constants}

    def correct(
        self, gradient: Floats, gap: Gap, strength: np.float32, memory: Memory, backend: Backend = ALONE
    ) -> None:
        kept, gain = np.float32(self.decay), np.float32(1 - self.decay)
        weight, rate_max = memory["weight"], memory["rate_max"]
        weight[0] = weight[0] * kept + gain
        rate_max[0] = max(rate_max[0], gap.rate)
        unit = ONE if gap.step is not None else rate_max[0]
        # Never 0: for a weight that has not moved the quotient would be 0 / 0.
        least = max(rate_max[0] * np.float32(self.epsilon), TINY)
        arrays = (gradient, gap.now, gap.base, memory["mean_square"], gap.step)
        scalars = (strength, kept, gain, weight[0], unit, least, TINY)
        backend.run(gap_aware_loop, arrays, scalars)

    def variants(self, step: Floats | None) -> list[Variant]:
        letters = gap_aware_loop.letters
        return [(gap_aware_loop, letters if step is not None else letters[:4] + "-" + letters[5:])]


@loop("wrrwrfffffff")
def gap_aware_loop(
    gradient: Floats,
    now: Floats,
    base: Floats,
    mean: Floats,
    step: Floats | None,
    strength: Scalar,
    kept: Scalar,
    gain: Scalar,
    weight: Scalar,
    unit: Scalar,
    least: Scalar,
    tiny: Scalar,
) -> None:
    """Compute the formula of GapAware; `step` is None where the optimizer keeps none."""
    for i in range(gradient.size):
        u = gradient[i]
        if step is not None:
            u = step[i]
        m = mean[i] * kept + u * u * gain
        mean[i] = np.float32(0) if m < tiny else m
        size = np.sqrt(mean[i] / weight) * unit + least
        gradient[i] = gradient[i] / (abs(now[i] - base[i]) * strength / size + np.float32(1))


def build_compensator(parts: TensorParts) -> Compensator | None:
    """Build the compensator that a policy names, if any."""
    knobs = parts.knobs
    match parts.compensator:
        case None:
            return None
        case "taylor":
            return Taylor()
        case "adaptive-taylor":
            return AdaptiveTaylor(knobs["decay"], knobs["epsilon"])
        case "gap-aware":
            return GapAwareCompensator(knobs["decay"], knobs["epsilon"])
        case other:
            raise ValueError(f"a policy may name the compensator {other!r}, but shards have none")
