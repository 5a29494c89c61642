"""Trained weights that anything but training has changed: they are refused, for servers accept them only when a job
begins. What is set of other variables travels with the worker's next contribution, as a change that a step makes."""

from __future__ import annotations

from typing import Any

import keras

from psworker.backends.keras.step import FitError
from psworker.backends.keras.variables import KerasVariables
from psworker.keras.fit.callbacks import acts_on_batches, listed
from psworker.keras.fit.gradients import GradientStep
from psworker.keras.fit.membership import FitMembership


class WeightGuard:
    """Decides when the model's weights are compared with the servers' version."""

    def __init__(self) -> None:
        #: Compare before the next batch.
        self.due = False
        # A callback of this fit might set weights around any batch.
        self._each_batch = False

    def begin_fit(self, callbacks: Any) -> None:
        """Look at the callbacks of a fit. Raises FitError."""
        if any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in listed(callbacks)):
            raise FitError(
                "SwapEMAWeights exchanges weights and averages during a job, and leaves them rounded: expected "
                "use_ema=True alone, which puts the averages into the model at the end of fit"
            )
        self._each_batch = acts_on_batches(callbacks)

    def after_batch(self) -> None:
        """Note that a batch is over; its callbacks are yet to run."""
        self.due |= self._each_batch

    def check(self, step: GradientStep) -> None:
        """Raise FitError if the trained weights are not the version that the servers gave."""
        if not (self.due and step.placed):
            return
        self.due = False
        changed = step.differing()
        if changed:
            raise FitError(
                f"the weights of {changed[0].name!r} were changed by something else than training (set_weights, "
                "load_weights, restore_best_weights, use_ema at the end of fit) in the middle of a job, and "
                "servers take weights at its beginning only: call psworker.keras.distribute(model) again, which "
                "starts a new job from these weights"
            )

    def check_given(self, membership: FitMembership, variables: KerasVariables | None) -> None:
        """Raise FitError if weights were set between joining and the first batch: servers began with others."""
        if membership.given is None or variables is None:
            return
        changed = membership.changed(variables)
        if changed is not None:
            raise FitError(
                f"the weights of {changed!r} were set after the job was joined (`.session` joins it, with the "
                "weights of that moment), and servers take weights at its beginning only: set or load them before, "
                "or call psworker.keras.distribute(model) again, which starts a new job from these weights"
            )
