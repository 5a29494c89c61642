"""Processing of a whole gradient before it is pushed: the job's own hook, and an optimizer's clipping.

One server clips the mean of all workers. Several servers hold parts of variables, so each worker clips its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from psworker.job import Job
from psworker.job.errors import JobError


class Processing:
    """Called in the step with one float32 gradient per trained variable; returns as many, of the same shapes.

    Raises JobError for a hook that does not return the gradients' shapes, when it is traced.
    """

    def __init__(self, job: Job, optimizer: Any) -> None:
        self._job, self._optimizer = job, optimizer
        #: Clip as the optimizer says; False where the server does. Set it before the first batch.
        self.clips = True

    @property
    def apart(self) -> bool:
        """Whether it looks at gradients one by one."""
        hook = type(self._job).gradients is not Job.gradients
        return hook or bool(getattr(self._optimizer, "clipnorm", None))

    def __call__(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        processed = list(self._job.gradients(gradients, list(variables)))
        if len(processed) != len(gradients):
            raise JobError(
                f"gradients() of job {type(self._job).__name__} must return one gradient per variable: expected "
                f"{len(gradients)}, got {len(processed)}"
            )
        processed = [
            keras.ops.cast(keras.ops.convert_to_tensor(gradient), "float32") for gradient in processed
        ]
        for variable, gradient in zip(variables, processed, strict=True):
            if not _fits(tuple(gradient.shape), tuple(variable.shape)):
                raise JobError(
                    f"gradients() of job {type(self._job).__name__} must keep the shapes: expected "
                    f"{tuple(variable.shape)} for {variable.name!r}, got {tuple(gradient.shape)}"
                )
        if self._optimizer is None or not self.clips:
            return processed
        clipped: list[Any] = self._optimizer._clip_gradients(processed)
        return clipped


def _fits(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Return whether shapes agree, as far as their sizes are known."""
    return len(found) == len(expected) and all(
        None in (one, other) or one == other for one, other in zip(found, expected, strict=True)
    )
