"""Learning rates as functions of the global version.

`rate(version)` is the rate of the update that turns `version` into
`version + 1`; the first is ``rate(0)``. Versions are global, so all shards
and all workers are on the same point of the schedule. The formulas and names
are those of keras.optimizers.schedules, in float32; powers and cosines are
rounded from float64 so that they are the same on every machine (Keras is
within two float32 ulp of them).
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from psserver.optimizers.decays import CosineRestarts, InverseTime, Polynomial
from psserver.optimizers.errors import OptimizerError
from pswire.knobs import KnobError, flag, integer, integers, number, numbers, read, settings
from pswire.nearest import did_you_mean

Made = TypeVar("Made")


class Schedule(Protocol):
    """A frozen dataclass whose fields are its knobs."""

    def rate(self, version: int) -> np.float32:
        """The learning rate of the update from `version` to the next; finite and >= 0."""


@dataclass(frozen=True, slots=True)
class Constant:
    """The same rate always."""

    learning_rate: float = number(meaning="the rate", at_least=0)

    def rate(self, version: int) -> np.float32:
        return np.float32(self.learning_rate)


@dataclass(frozen=True, slots=True)
class Exponential:
    """``initial * decay_rate ** (version / decay_steps)``; staircase: of the rounded-down quotient.

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

    The warm-up goes from `initial_learning_rate` to `warmup_target` in
    `warmup_steps` versions, the decay takes `decay_steps` more; without a
    warm-up the decay starts at `initial_learning_rate` at once.
    keras.optimizers.schedules.CosineDecay; Loshchilov & Hutter (ICLR 2017),
    equation 5, without restarts; warm-up: Goyal et al. (2017), section 2.2.
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


def knobs_read(made: type[Made], table: Mapping[str, object], owner: str, also: Iterable[str] = ()) -> Made:
    """`pswire.knobs.read` for float32. Raises OptimizerError."""
    try:
        return read(made, table, owner, also=also, single=True)
    except KnobError as error:
        raise OptimizerError(str(error)) from error


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not among `known`."""
    return f"unknown {what} {name!r}{did_you_mean(str(name), known)}"


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
    """A number, or a table with a "schedule" and its knobs. Raises OptimizerError."""
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
    """What `read_schedule` reads back as an equal schedule."""
    if isinstance(schedule, Constant):
        return schedule.learning_rate
    name = next(name for name, made in SCHEDULES.items() if isinstance(schedule, made))
    return {"schedule": name, **settings(schedule)}
