"""Inner optimizers: elementwise float32 arithmetic on the trainable part of every server's payload.

They follow Keras' formulas (keras.optimizers.SGD, AdamW); rates are constant.
Arrays are changed in place: copy them before to keep them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Slots:
    """What an inner optimizer remembers: how many steps it took, and arrays by name, one per server."""

    step: int = 0
    arrays: dict[str, list[Floats]] = field(default_factory=dict)

    def copied(self) -> Self:
        return type(self)(self.step, {name: [a.copy() for a in each] for name, each in self.arrays.items()})


class Inner(Protocol):
    slots: ClassVar[tuple[str, ...]]

    def step(self, x: Sequence[Floats], g: Sequence[Floats], slots: Slots) -> None:
        """Move `x` and `slots` by the gradient `g`, in place; `g` stays as it is."""
        ...


def fresh(inner: Inner, sizes: Sequence[int]) -> Slots:
    """Slots before the first step; `sizes`: elements per server."""
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
class AdamW:
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
