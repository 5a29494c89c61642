"""References in float64: what the papers' formulas say, written out once more for one vector each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Quadratic:
    """1/2 sum_i h_i (x_i - c)^2, one per worker."""

    def __init__(self, h: Sequence[float], centre: float = 0.0) -> None:
        self.h, self.centre = np.array(h), centre

    def gradient(self, x: Vector) -> Vector:
        return self.h * (x - self.centre)


def sgd_steps(x: Vector, tasks: Quadratic, rate: float, steps: int) -> Vector:
    for _ in range(steps):
        x = x - rate * tasks.gradient(x)
    return x


class AdamW:
    """Loshchilov and Hutter 2019, algorithm 2, as printed but for the decay: by rate times decay."""

    def __init__(self, rate: float, decay: float, beta_1: float, beta_2: float, epsilon: float) -> None:
        self.rate, self.decay, self.beta_1, self.beta_2 = rate, decay, beta_1, beta_2
        # Keras' epsilon is added before the second moment's correction ("epsilon hat").
        self.epsilon, self.t = epsilon, 0
        self.m: Vector | float = 0.0
        self.v: Vector | float = 0.0

    def step(self, x: Vector, g: Vector) -> Vector:
        self.t += 1
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * g
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * g * g
        correction = np.sqrt(1 - self.beta_2**self.t)
        m_hat, root = self.m / (1 - self.beta_1**self.t), np.sqrt(self.v)
        return x - self.rate * (m_hat * correction / (root + self.epsilon) + self.decay * x)


class DanaZero:
    """Hakimi et al. 2019: one velocity per worker on the server; who reads is sent where all velocities lead."""

    def __init__(self, x: Vector, workers: int, rate: float, momentum: float) -> None:
        self.x, self.rate, self.momentum = x.copy(), rate, momentum
        self.v = [np.zeros_like(x) for _ in range(workers)]

    def view(self) -> Vector:
        return self.x - self.rate * self.momentum * sum(self.v, np.zeros_like(self.x))

    def push(self, worker: int, g: Vector) -> None:
        self.v[worker] = self.momentum * self.v[worker] + g
        self.x = self.x - self.rate * self.v[worker]
