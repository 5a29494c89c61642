"""A Keras model whose variables are not known yet is built from the first batch of its data, as `fit` does."""

from __future__ import annotations

from typing import Any

import keras

from psworker.job import Job
from psworker.job.errors import JobError, in_words
from psworker.tensorflow.data.batches import numbered_batches
from psworker.tensorflow.data.dealt import declared_work, unit_batches


def built(job: Job, model: Any, seed: int) -> Any:
    """The model, built where it was not. The data is that of the first of one workers: only its shape matters.

    Raises JobError when there is no batch, or the model cannot be called on it.
    """
    if not isinstance(model, keras.Model) or model.built:
        return model
    work = declared_work(job)
    if work is not None:
        batch = next(unit_batches(job, work.of(0, 0, seed)), None)
    else:
        work = declared_work(job)
    if work is None:
        _, batch = next(numbered_batches(job.dataset(0, 1, seed), 1, 0), (0, None))
    else:
        batch = next(unit_batches(job, work.of(0, 0, seed)), None)
    if batch is None:
        asked = f"dataset(0, 1, {seed})" if work is None else "its first unit"
        raise JobError(
            f"the dataset of job {type(job).__name__} is empty ({asked} has no batch), and the Keras model "
            f"{model.name!r} is to be built from its first batch"
        )
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    try:
        model(x)
    except Exception as error:
        raise JobError(
            f"the Keras model {model.name!r} is not built yet, and calling it on the first batch raised "
            f"{in_words(error)}: begin it with keras.Input(shape), or call model.build(shape) in model()"
        ) from error
    return model
