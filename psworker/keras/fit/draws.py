"""The draws of layers for a batch (dropout, noise, augmentation) on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from psworker.backends import StepResult
from psworker.backends.keras.variables import KerasVariables, read
from psworker.keras.fit.gradients import GradientStep


class Draws:
    """Sets the states of Keras' random generators to those that plain `fit` would reach at a batch.

    They follow from the states at the beginning of the job, the worker and the batch's number, so a process that is
    started again draws the same.
    """

    def __init__(self) -> None:
        self._seeds: tuple[Any, ...] = ()
        # The states at the beginning of the job, and by how much one batch moves them.
        self._first: list[np.ndarray[Any, Any]] = []
        self._each: list[np.ndarray[Any, Any]] | None = None

    def begin(self, variables: KerasVariables, worker: int) -> None:
        """Choose the first states: worker 0 draws what plain `fit` would, every other one numbers of its own."""
        self._seeds = variables.seeds
        if worker:
            for variable in self._seeds:
                own = np.random.SeedSequence([*map(int, read(variable)), worker])
                # Not every backend has uint32.
                kind = read(variable).dtype
                variable.assign(own.generate_state(2).astype(np.int64) & np.iinfo(kind).max)
        self._first = self._states()

    def train(
        self, step: GradientStep, data: Any, number: int
    ) -> tuple[Mapping[str, Any], StepResult | None]:
        """Run the step for the batch `number`; logs and what to contribute."""
        if not self._seeds:
            return step(data)
        if number and self._each is None:
            before = self._states()
            step.rehearse(data)
            self._each = self._moved(before)
        for k, variable in enumerate(self._seeds):
            far = 0 if self._each is None else self._each[k] * self._first[k].dtype.type(number)
            variable.assign(self._first[k] + far)
        result = step(data)
        if self._each is None:
            self._each = self._moved(self._first)
        return result

    def _states(self) -> list[np.ndarray[Any, Any]]:
        return [read(variable) for variable in self._seeds]

    def _moved(self, before: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return [now - then for now, then in zip(self._states(), before, strict=True)]
