"""A race whose gradients count: gradient descent on a quadratic, by the decisions of a policy."""

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from psserver.policies import Apply, Decision, Grant
from tests.papers.race import Race

Vector = NDArray[np.float64]


@dataclass
class Descent(Race):
    """f(x) = sum of h x^2 / 2, from x = 1. Every gradient has noise of standard deviation `noise` added to it.

    A gradient is taken from the weights as they are at the grant. `rate`: learning rate.
    """

    h: Vector = field(default_factory=lambda: np.ones(1))
    rate: float = 0.1
    noise: float = 0.0

    def __post_init__(self) -> None:
        self.x = np.ones_like(self.h)
        self._gradients: dict[int, Vector] = {}
        self._chance = np.random.default_rng(random.Random(self.seed).getrandbits(32))
        super().__post_init__()

    def _follow(self, decision: Decision) -> int | None:
        match decision:
            case Grant(_, ticket):
                self._gradients[ticket] = self.gradient()
            case Apply(parts, scale, lr_scale):
                total = sum(part.factor * self._gradients.pop(part.ticket) for part in parts)
                self.x = self.x - self.rate * lr_scale * scale * total
        return super()._follow(decision)

    def gradient(self) -> Vector:
        exact = self.h * self.x
        return exact + self.noise * self._chance.standard_normal(len(self.h)) if self.noise else exact

    @property
    def loss(self) -> float:
        return float((self.h * self.x**2).sum() / 2)
