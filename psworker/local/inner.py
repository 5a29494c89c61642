"""A worker's own optimizers, and steps of them: elementwise float32 arithmetic on each server's trainable part.

They follow Keras' formulas (keras.optimizers.SGD, AdamW); rates are constant.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Elements that a sum reads at once, so that its float64 copies stay small.
BLOCK = 1 << 16


@dataclass(slots=True)
class Slots:
    """The state of an inner optimizer: the number of its steps, and arrays by name, one per server."""

    step: int = 0
    arrays: dict[str, list[Floats]] = field(default_factory=dict)

    def copied(self) -> Self:
        return type(self)(self.step, {name: [a.copy() for a in each] for name, each in self.arrays.items()})


class Inner(Protocol):
    """An inner optimizer. `slots`: the names of its arrays."""

    slots: ClassVar[tuple[str, ...]]

    def step(self, x: Sequence[Floats], g: Sequence[Floats], slots: Slots) -> None:
        """Move `x` and `slots` by the gradient `g`, in place; `g` does not change."""
        ...


def fresh(inner: Inner, sizes: Sequence[int]) -> Slots:
    """Return the slots before the first step. `sizes`: elements per server."""
    return Slots(0, {name: [np.zeros(size, np.float32) for size in sizes] for name in inner.slots})


@dataclass(frozen=True, slots=True)
class Sgd:
    """x' = x - rate g."""

    learning_rate: float
    slots: ClassVar[tuple[str, ...]] = ()

    def step(self, x: Sequence[Floats], g: Sequence[Floats], slots: Slots) -> None:
        rate = np.float32(self.learning_rate)
        for position, gradient in zip(x, g, strict=True):
            position -= rate * gradient


@dataclass(frozen=True, slots=True)
class InnerAdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).

    With t = 1, 2, ...: y = x - x decay rate; m' = m + (g - m)(1 - beta_1);
    v' = v + (g*g - v)(1 - beta_2); x' = y - m' alpha / (sqrt(v') + epsilon), where
    alpha = rate sqrt(1 - beta_2**t) / (1 - beta_1**t).
    """

    learning_rate: float
    weight_decay: float
    beta_1: float
    beta_2: float
    epsilon: float
    slots: ClassVar[tuple[str, ...]] = ("momentum", "velocity")

    def step(self, x: Sequence[Floats], g: Sequence[Floats], slots: Slots) -> None:
        slots.step += 1
        alpha, rate = self._alpha(slots.step), np.float32(self.learning_rate)
        gain_1, gain_2 = np.float32(1 - self.beta_1), np.float32(1 - self.beta_2)
        means, squares = slots.arrays["momentum"], slots.arrays["velocity"]
        for position, gradient, mean, square in zip(x, g, means, squares, strict=True):
            position -= position * np.float32(self.weight_decay) * rate
            mean += (gradient - mean) * gain_1
            square += (gradient * gradient - square) * gain_2
            position -= mean * alpha / (np.sqrt(square) + np.float32(self.epsilon))

    def _alpha(self, step: int) -> np.float32:
        # From float64: the same on every machine.
        corrected = math.sqrt(1 - math.pow(self.beta_2, step)) / (1 - math.pow(self.beta_1, step))
        return np.float32(self.learning_rate * corrected)


@dataclass(frozen=True, slots=True)
class InnerSteps:
    """The result of some steps: the weights `x`, the optimizer's state, and facts on the gradients.

    `norm`: L2 norm of the last gradient, 0 if there was none. If it is not finite, the steps ended there and are
    useless.
    """

    x: list[Floats]
    slots: Slots
    losses: tuple[float, ...]
    samples: int
    norm: float

    @property
    def loss(self) -> float:
        """The mean over the batches; NaN if one is not finite."""
        return math.fsum(self.losses) / len(self.losses) if all(map(math.isfinite, self.losses)) else math.nan

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)

    @classmethod
    def none(cls, x: Sequence[Floats], slots: Slots) -> Self:
        """Return what no steps lead to."""
        return cls(list(x), slots, (), 0, 0.0)

    def after(self, earlier: Self) -> Self:
        """Return the steps together with earlier ones, from which they went on."""
        return replace(self, losses=earlier.losses + self.losses, samples=earlier.samples + self.samples)


def inner_steps(
    start: Sequence[Floats],
    slots: Slots,
    inner: Inner,
    trainable: Sequence[int],
    gradient: Callable[[list[Floats], Any], Any],
    batches: Iterable[Any],
) -> InnerSteps:
    """Take one step per batch from `start` on. `start` and `slots` do not change.

    `inner` moves the first `trainable` elements of each server. The rest is state (moving averages, for example), to
    which the change of each batch is added.
    """
    x, slots = [flat.copy() for flat in start], slots.copied()
    moved = [flat[:size] for flat, size in zip(x, trainable, strict=True)]
    losses: list[float] = []
    samples, norm = 0, 0.0
    for batch in batches:
        result = gradient(x, batch)
        losses.append(result.loss)
        samples, norm = samples + result.samples, result.norm
        if not math.isfinite(norm):
            break
        # Read once: the arrays may have to be joined.
        flats = result.flats
        inner.step(moved, [flat[:size] for flat, size in zip(flats, trainable, strict=True)], slots)
        for flat, change, size in zip(x, flats, trainable, strict=True):
            flat[size:] += change[size:]
    return InnerSteps(x, slots, tuple(losses), samples, norm)


def norm_of(flats: Sequence[Floats], trainable: Sequence[int]) -> float:
    """Return the L2 norm of all trainable parts, summed in float64 in a fixed order: equal bits everywhere."""
    total = 0.0
    for flat, size in zip(flats, trainable, strict=True):
        for start in range(0, size, BLOCK):
            block = flat[start : min(start + BLOCK, size)].astype(np.float64)
            total += float(np.add.reduce(block * block))
    return math.sqrt(total)
