"""What anything but training has changed: trained weights are refused, for servers accept them only when a job begins;
other variables are taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from pswire.model.plan import VariableSpec
from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import KerasVariables, read
from psworker.keras.fit.callbacks import SWAPPED, acts_on_batches, swaps_weights
from psworker.keras.fit.gradients import GradientStep
from psworker.keras.fit.membership import FitMembership

log = logging.getLogger("ps-worker")

# Of a value that has travelled as a change.
ROUNDING = 1e-6


class GivenState:
    """Variables that are not trained and that a callback has set, as `model.beta.assign(epoch / 10)` does.

    The change travels with this worker's contributions, as one that a step makes. The worker keeps the value until the
    servers' version has it, or a step has moved it.
    """

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, NDArray[Any]]] = {}
        self._told = False

    def take(self, step: GradientStep, specs: Sequence[VariableSpec], workers: int) -> None:
        """Note the present values of these variables."""
        for spec in specs:
            variable = step.variable(spec.name)
            self._values[spec.name] = variable, np.array(read(variable))
        if specs and workers > 1 and not self._told:
            self._told = True
            log.warning(
                "%r, which is not trained, was set while the job runs; the value travels with this worker's "
                "contributions, and policies average over workers: set it in every worker alike",
                specs[0].name,
                extra=event("state_set"),
            )

    def after_step(self) -> None:
        """Forget what a step has moved: it goes on from there."""
        self._forget(lambda now, value: not np.array_equal(now, value))

    def after_version(self) -> None:
        """Forget what the version in the model has, and set the others again."""
        self._forget(lambda now, value: np.allclose(now, value, rtol=ROUNDING, atol=ROUNDING))
        for variable, value in self._values.values():
            variable.assign(value)

    def _forget(self, when: Callable[[Any, Any], Any]) -> None:
        if self._values:
            kept = {n: (v, value) for n, (v, value) in self._values.items() if not when(read(v), value)}
            self._values = kept


class WeightGuard:
    """Decides when the model's weights are compared with the servers' version, and how exactly."""

    def __init__(self) -> None:
        #: Compare before the next batch.
        self.due = False
        # A callback of this fit exchanges weights and averages, and back.
        self._swaps = False
        # A callback of this fit might set weights around any batch.
        self._each_batch = False
        self.given = GivenState()

    def begin_fit(self, callbacks: Any) -> None:
        """Look at the callbacks of a fit."""
        self._swaps, self._each_batch = swaps_weights(callbacks), acts_on_batches(callbacks)

    def after_batch(self) -> None:
        """Note that a batch is over; its callbacks are yet to run."""
        self.due |= self._each_batch

    def check(self, step: GradientStep, workers: int = 1) -> None:
        """Raise FitError if the trained weights are not the version that the servers gave. Take the other variables."""
        if not (self.due and step.placed):
            return
        self.due = False
        changed = step.differing(self._tolerance)
        trained = [spec.name for spec in changed if spec.kind == "trainable"]
        if trained:
            raise FitError(
                f"the weights of {trained[0]!r} were changed by something else than training (set_weights, "
                "load_weights, restore_best_weights, use_ema at the end of fit) in the middle of a job, and "
                "servers take weights at its beginning only: call psworker.keras.distribute(model) again, which "
                "starts a new job from these weights"
            )
        self.given.take(step, changed, workers)
        if self._swaps and not changed:
            step.restore()

    def check_given(self, membership: FitMembership, variables: KerasVariables | None) -> None:
        """Raise FitError if weights were set between joining and the first batch: servers began with others."""
        if membership.given is None or variables is None:
            return
        changed = membership.changed(variables, self._tolerance)
        if changed is not None:
            raise FitError(
                f"the weights of {changed!r} were set after the job was joined (`.session` joins it, with the "
                "weights of that moment), and servers take weights at its beginning only: set or load them before, "
                "or call psworker.keras.distribute(model) again, which starts a new job from these weights"
            )

    @property
    def _tolerance(self) -> float:
        return SWAPPED if self._swaps else 0.0
