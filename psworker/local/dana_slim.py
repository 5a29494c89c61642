"""DANA-Slim: momentum kept by each worker, so that asynchrony does not add to it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psworker.local.inner_steps import InnerSteps, norm_of
from psworker.local.rule import Contribution
from psworker.local.trainer import Flats, Gradient, Result


@dataclass(frozen=True, slots=True)
class DanaSlim:
    """v' = momentum v + g; the payload is momentum v' + g, for servers that run SGD.

    Hakimi, Barkai, Gabel and Schuster 2019. What the servers hold
    is then the point to which DANA-Zero would look ahead for all workers
    together. With one worker it is Nesterov's method.
    """

    trainable: tuple[int, ...]
    momentum: float
    steps: ClassVar[int] = 1
    remembers: ClassVar[bool] = True
    steps_before_pull: ClassVar[bool] = False

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("a gradient is computed from pulled weights only")

    def payload(
        self,
        memory: Flats | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Flats | None]:
        (batch,) = batches
        result = gradient(weights, batch)
        if not math.isfinite(result.norm):
            return result, memory
        gamma, velocities, payload = np.float32(self.momentum), [], []
        for number, (flat, size) in enumerate(zip(result.flats, self.trainable, strict=True)):
            g = flat[:size]
            velocity = g.copy() if memory is None else gamma * memory[number] + g
            out = np.empty_like(flat)
            np.add(gamma * velocity, g, out=out[:size])
            out[size:] = flat[size:]
            velocities.append(velocity)
            payload.append(out)
        norm = norm_of(payload, self.trainable)
        return Contribution(payload, result.loss, norm, result.samples), velocities
