"""Learning rates as functions of the global version.

`rate(version)` is the rate of the update that turns `version` into ``version + 1``; the first is ``rate(0)``. Versions
are global, so all shards and all workers are at the same point of the schedule. Formulas and names are those of
keras.optimizers.schedules, in float32. Powers and cosines are rounded from float64, so that they are the same on every
machine; Keras is within two float32 ulp of them.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from psserver.optimizers.reading import OptimizerError, knobs_read, unknown
from pswire.knobs import flag, integer, integers, number, numbers, settings


class Schedule(Protocol):
    """A frozen dataclass whose fields are its knobs."""

    def rate(self, version: int) -> np.float32:
        """Return the learning rate of the update from `version` to the next, finite and >= 0."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant rate."""

    learning_rate: float = number(meaning="the rate", at_least=0)

    def rate(self, version: int) -> np.float32:
        return np.float32(self.learning_rate)


@dataclass(frozen=True, slots=True)
class Exponential:
    """``initial * decay_rate ** (version / decay_steps)``; staircase: with the quotient rounded down.

    keras.optimizers.schedules.ExponentialDecay.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions in which the rate changes by decay_rate", at_least=1)
    decay_rate: float = number(meaning="factor per decay_steps versions", above=0, at_most=1)
    staircase: bool = flag(False, "change only at whole multiples of decay_steps")

    def rate(self, version: int) -> np.float32:
        exponent = np.float32(version) / np.float32(self.decay_steps)
        if self.staircase:
            exponent = np.floor(exponent)
        factor = np.float32(math.pow(np.float32(self.decay_rate), exponent))
        return np.float32(np.float32(self.initial_learning_rate) * factor)


@dataclass(frozen=True, slots=True)
class Cosine:
    """A linear warm-up, then half a cosine from there down to `alpha` times the peak.

    The warm-up goes from `initial_learning_rate` to `warmup_target` in `warmup_steps` versions, and the decay takes
    `decay_steps` more. Without a warm-up the decay starts at `initial_learning_rate` at once.
    keras.optimizers.schedules.CosineDecay; Loshchilov & Hutter (ICLR 2017), equation 5, without restarts; warm-up:
    Goyal et al. (2017), section 2.2.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions of the decay, after the warm-up", at_least=1)
    alpha: float = number(0.0, "the last rate as a fraction of the peak", at_least=0, at_most=1)
    warmup_target: float | None = number(None, "the peak, reached at the end of the warm-up", at_least=0)
    warmup_steps: int = integer(0, "versions of the warm-up", at_least=0)

    def __post_init__(self) -> None:
        if (self.warmup_target is None) != (self.warmup_steps == 0):
            raise OptimizerError(
                "schedule cosine: a warm-up needs both warmup_target (the rate to reach) and "
                f"warmup_steps >= 1, got warmup_target={self.warmup_target} and "
                f"warmup_steps={self.warmup_steps}; give both or neither"
            )

    def rate(self, version: int) -> np.float32:
        first = np.float32(self.initial_learning_rate)
        if self.warmup_target is None:
            return self._decayed(first, np.float32(version))
        warm, peak = np.float32(self.warmup_steps), np.float32(self.warmup_target)
        step = np.float32(version)
        if step < warm:
            return np.float32((peak - first) * (step / warm) + first)
        return self._decayed(peak, step - warm)

    def _decayed(self, peak: np.float32, step: np.float32) -> np.float32:
        steps = np.float32(self.decay_steps)
        angle = np.float32(math.pi) * (min(step, steps) / steps)
        cosine = np.float32(0.5) * (np.float32(1) + np.float32(math.cos(angle)))
        fraction = np.float32(1 - self.alpha) * cosine + np.float32(self.alpha)
        return np.float32(peak * fraction)


@dataclass(frozen=True, slots=True)
class Piecewise:
    """``values[0]`` up to and including version ``boundaries[0]``, then ``values[1]``, and so on.

    keras.optimizers.schedules.PiecewiseConstantDecay.
    """

    boundaries: tuple[int, ...] = integers("the last version of each value but the last", at_least=0)
    values: tuple[float, ...] = numbers("the rates, one more than boundaries", at_least=0)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False))
        if not self.boundaries or not rising:
            raise OptimizerError(
                "schedule piecewise: boundaries must be one or more rising versions, "
                f"got {list(self.boundaries)}"
            )
        if len(self.values) != len(self.boundaries) + 1:
            raise OptimizerError(
                "schedule piecewise: values must be one more than boundaries "
                f"({len(self.boundaries) + 1}), got {len(self.values)}"
            )

    def rate(self, version: int) -> np.float32:
        return np.float32(self.values[bisect_left(self.boundaries, version)])


@dataclass(frozen=True, slots=True)
class Polynomial:
    """``(initial - end) * (1 - version / decay_steps) ** power + end``, then `end`; a straight line for power 1.

    cycle: instead of staying at `end`, rise again to the curve of the next multiple of `decay_steps`.
    keras.optimizers.schedules.PolynomialDecay.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions until the last rate", at_least=1)
    end_learning_rate: float = number(0.0001, "the last rate", at_least=0)
    power: float = number(1.0, "exponent of the remaining fraction of decay_steps", above=0)
    cycle: bool = flag(False, "rise again and decay to the next multiple of decay_steps")

    def rate(self, version: int) -> np.float32:
        step, steps = np.float32(version), np.float32(self.decay_steps)
        if self.cycle:
            steps = steps * max(np.float32(1), np.ceil(step / steps))
        left = np.float32(1) - min(step, steps) / steps
        first, last = np.float32(self.initial_learning_rate), np.float32(self.end_learning_rate)
        factor = np.float32(math.pow(left, np.float32(self.power)))
        return np.float32((first - last) * factor + last)


@dataclass(frozen=True, slots=True)
class InverseTime:
    """``initial / (1 + decay_rate * version / decay_steps)``; staircase: with the quotient rounded down.

    keras.optimizers.schedules.InverseTimeDecay.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    decay_steps: int = integer(meaning="versions in which the divisor grows by decay_rate", at_least=1)
    decay_rate: float = number(meaning="growth of the divisor per decay_steps versions", at_least=0)
    staircase: bool = flag(False, "change only at whole multiples of decay_steps")

    def rate(self, version: int) -> np.float32:
        quotient = np.float32(version) / np.float32(self.decay_steps)
        if self.staircase:
            quotient = np.floor(quotient)
        # A divisor beyond float32 gives a rate of 0.
        with np.errstate(over="ignore"):
            divisor = np.float32(1) + np.float32(self.decay_rate) * quotient
        return np.float32(np.float32(self.initial_learning_rate) / divisor)


@dataclass(frozen=True, slots=True)
class CosineRestarts:
    """A cosine from the first rate down to `alpha` times it, with warm restarts.

    Each half cosine is `t_mul` times as long as the one before and starts `m_mul` times as high.
    keras.optimizers.schedules.CosineDecayRestarts; Loshchilov & Hutter (ICLR 2017), section 3. Keras finds the number
    of a restart by a logarithm in float32, which may be one version off; here it is exact.
    """

    initial_learning_rate: float = number(meaning="the first rate", at_least=0)
    first_decay_steps: int = integer(meaning="versions of the first cosine", at_least=1)
    t_mul: float = number(2.0, "length of each cosine relative to the one before", at_least=1)
    m_mul: float = number(1.0, "height of each cosine relative to the one before", at_least=0, at_most=1)
    alpha: float = number(0.0, "the last rate as a fraction of the first", at_least=0, at_most=1)

    def rate(self, version: int) -> np.float32:
        restarts, fraction = self._place(version / self.first_decay_steps)
        height = np.float32(math.pow(np.float32(self.m_mul), restarts))
        cosine = np.float32(math.cos(np.float32(math.pi) * fraction))
        decayed = np.float32(0.5) * height * (np.float32(1) + cosine)
        alpha = np.float32(self.alpha)
        return np.float32(
            np.float32(self.initial_learning_rate) * ((np.float32(1) - alpha) * decayed + alpha)
        )

    def _place(self, done: float) -> tuple[int, np.float32]:
        """Return the number of restarts so far, and the fraction of the present cosine that is over, 0 to 1."""
        growth = self.t_mul - 1
        if not growth:
            return math.floor(done), np.float32(done - math.floor(done))

        def begin(restart: int) -> float:
            return (math.pow(self.t_mul, restart) - 1) / growth

        restart = math.floor(math.log1p(done * growth) / math.log(self.t_mul))
        # The last bits of logarithms differ between machines.
        while begin(restart + 1) <= done:
            restart += 1
        while begin(restart) > done:
            restart -= 1
        return restart, np.float32((done - begin(restart)) / math.pow(self.t_mul, restart))


SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "exponential": Exponential,
    "cosine": Cosine,
    "piecewise": Piecewise,
    "polynomial": Polynomial,
    "inverse-time": InverseTime,
    "cosine-restarts": CosineRestarts,
}


def read_schedule(learning_rate: object) -> Schedule:
    """Read a number, or a table with a "schedule" and its knobs. Raises OptimizerError."""
    if not isinstance(learning_rate, Mapping):
        return knobs_read(Constant, {"learning_rate": learning_rate}, "optimizer")
    table = dict(learning_rate)
    if "schedule" not in table:
        raise OptimizerError(
            f'optimizer: learning_rate as a table needs "schedule", one of {", ".join(SCHEDULES)}; '
            f"got the keys {', '.join(map(str, table)) or '(none)'}"
        )
    name = table.pop("schedule")
    if not isinstance(name, str) or name not in SCHEDULES:
        raise OptimizerError(unknown("schedule", name, SCHEDULES))
    return knobs_read(SCHEDULES[name], table, f"schedule {name}", also=("schedule",))


def schedule_config(schedule: Schedule) -> float | dict[str, object]:
    """Return what `read_schedule` reads back as an equal schedule."""
    if isinstance(schedule, Constant):
        return schedule.learning_rate
    name = next(name for name, made in SCHEDULES.items() if isinstance(schedule, made))
    return {"schedule": name, **settings(schedule)}
