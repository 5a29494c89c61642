"""EASGD: every worker keeps weights of its own, tied to a common centre by a spring."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psworker.local.inner import Sgd, Slots
from psworker.local.inner_steps import InnerSteps, inner_steps, norm_of
from psworker.local.rule import Contribution
from psworker.local.trainer import Flats, Gradient, Result


@dataclass(frozen=True, slots=True)
class Elastic:
    """Take `steps` steps of SGD on x_i, then e = alpha (x_i - c), x_i -= e, and the centre: c += e.

    Zhang, Choromanska and LeCun 2015, algorithm 1. -e travels as a gradient
    for servers that run SGD at learning rate 1. The exchange conserves c + sum
    of all x_i. The steps come before the grant, so that c is fresh when it is
    pulled. A worker begins at the centre; only its first steps have to come after a pull.
    """

    trainable: tuple[int, ...]
    steps: int
    alpha: float
    inner: Sgd
    remembers: ClassVar[bool] = True
    steps_before_pull: ClassVar[bool] = True

    def take_steps(self, memory: Flats, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        return inner_steps(memory, Slots(), self.inner, self.trainable, gradient, batches)

    def payload(
        self,
        memory: Flats | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Flats]:
        start = memory if memory is not None else weights
        made = taken if taken is not None else self.take_steps(start, gradient, batches)
        if not made.finite:
            return Contribution(made.x, made.loss, made.norm, made.samples), start
        alpha, own, payload = np.float32(self.alpha), [], []
        for local, centre, size in zip(made.x, weights, self.trainable, strict=True):
            pulled = alpha * (local - centre)
            own.append(local - pulled)
            # State is moved by what is pushed, weights against it.
            np.negative(pulled[:size], out=pulled[:size])
            payload.append(pulled)
        norm = norm_of(payload, self.trainable)
        return Contribution(payload, made.loss, norm, made.samples), own
