"""Processing of a whole gradient before it is pushed: the job's own hook, and an optimizer's clipping.

One server clips the mean of all workers. Several servers hold parts of variables, so each worker clips its gradient.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from psworker.job import Job
from psworker.job.errors import JobError


class Processing:
    """Called in the graph with one float32 gradient per trained variable; returns as many, of the same shapes.

    `every`: batches of one contribution, whose mean is processed.
    Raises JobError for an optimizer that asks for what a job cannot do, and,
    when it is traced, for a hook that does not return the gradients' shapes.
    """

    def __init__(self, job: Job, optimizer: Any, trained: tuple[Any, ...]) -> None:
        _check(job, optimizer)
        self._job, self._optimizer, self._trained = job, optimizer, trained
        #: Clip as the optimizer says; False where the server does. Set it before the step is traced.
        self.clips = True
        self.every = int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)

    def __call__(self, gradients: list[Any]) -> list[Any]:
        processed = list(self._job.gradients(gradients, list(self._trained)))
        if len(processed) != len(gradients):
            raise JobError(
                f"gradients() of job {type(self._job).__name__} must return one gradient per variable: expected "
                f"{len(gradients)}, got {len(processed)}"
            )
        processed = [tf.cast(tf.convert_to_tensor(gradient), tf.float32) for gradient in processed]
        for variable, gradient in zip(self._trained, processed, strict=True):
            if not gradient.shape.is_compatible_with(variable.shape):
                raise JobError(
                    f"gradients() of job {type(self._job).__name__} must keep the shapes: expected {variable.shape} "
                    f"for {variable.name!r}, got {gradient.shape}"
                )
        if self._optimizer is None or not self.clips:
            return processed
        clipped: list[Any] = self._optimizer._clip_gradients(processed)
        return clipped


def _check(job: Job, optimizer: Any) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise JobError(
            f"the optimizer of job {type(job).__name__} scales its loss by a number that changes, which a job does not "
            "keep: use loss_scale_factor=1024 (and compile(auto_scale_loss=False)), mixed_bfloat16, which needs no "
            "scaling, or model.fit with psworker.keras.distribute"
        )
    if optimizer is not None and optimizer.use_ema:
        raise JobError(
            f"the optimizer of job {type(job).__name__} averages weights (use_ema), and the weights of a job are the "
            "servers': leave it out, or use model.fit with psworker.keras.distribute"
        )
