"""Local SGD and DiLoCo: pull, take some steps, push how far they led."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psworker.local.inner import Inner, Slots, fresh
from psworker.local.inner_steps import InnerSteps, inner_steps, norm_of
from psworker.local.rule import Contribution
from psworker.local.trainer import Flats, Gradient, Result


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """The payload is x_pulled - x_local after `steps` batches: a gradient for the servers' (outer) optimizer.

    With outer SGD at learning rate 1 the mean of payloads makes the model the
    mean of the workers' models: local SGD (Stich 2019), FedAvg (McMahan et al.
    2017). DiLoCo (Douillard et al. 2023) has AdamW within and Nesterov outside,
    and each worker keeps its AdamW's moments from round to round.
    """

    trainable: tuple[int, ...]
    steps: int
    inner: Inner
    steps_before_pull: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        return bool(self.inner.slots)

    def take_steps(self, memory: Any, gradient: Gradient, batches: Iterable[Any]) -> InnerSteps:
        raise TypeError("local steps begin at pulled weights only")

    def payload(
        self,
        memory: Slots | None,
        taken: InnerSteps | None,
        weights: Flats,
        gradient: Gradient,
        batches: Iterable[Any],
    ) -> tuple[Result, Slots]:
        slots = memory if memory is not None else fresh(self.inner, self.trainable)
        made = inner_steps(weights, slots, self.inner, self.trainable, gradient, batches)
        if not made.finite:
            return Contribution(made.x, made.loss, made.norm, made.samples), slots
        for local, pulled, size in zip(made.x, weights, self.trainable, strict=True):
            # The steps' own arrays become the payload: nothing else refers to them.
            np.subtract(pulled[:size], local[:size], out=local[:size])
            np.subtract(local[size:], pulled[size:], out=local[size:])
        norm = norm_of(made.x, self.trainable)
        return Contribution(made.x, made.loss, norm, made.samples), made.slots
