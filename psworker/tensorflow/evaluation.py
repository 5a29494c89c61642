"""Measure a trained model as its job says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras

from psworker.job import Job
from psworker.job.errors import JobError
from psworker.tensorflow.losses import is_keras_loss

PIECE = 512  # samples evaluated at once, where `heldout()` gives whole arrays


def evaluate(job: Job, model: Any) -> dict[str, float]:
    """`job.evaluate(model)`, else the job's Keras loss and metrics on `job.heldout()`, else {}.

    Raises JobError when a metric is no finite number, and when there is
    held-out data but `model()` returned no Keras model to measure on it.
    """
    metrics = job.evaluate(model)
    if metrics is None:
        metrics = _on_heldout(job, model)
    return {str(name): _number(job, name, value) for name, value in metrics.items()}


def _on_heldout(job: Job, model: Any) -> dict[str, Any]:
    data = job.heldout()
    if data is None:
        return {}
    if not isinstance(model, keras.Model):
        raise JobError(
            f"job {type(job).__name__} has held-out data, but model() returned no Keras model to measure: "
            "write evaluate(model)"
        )
    loss = job.loss if is_keras_loss(job.loss) else None
    model.compile(loss=loss, metrics=list(job.metrics), jit_compile=False)
    measured: dict[str, Any] = {}
    total, samples = 0.0, 0
    for x, y, weight in _batches(data):
        prediction = model(x, training=False)
        count = len(prediction)
        total += count * float(model.compute_loss(x, y, prediction, weight)) if loss else 0.0
        samples += count
        measured = dict(model.compute_metrics(x, y, prediction, weight))
    measured.pop("loss", None)
    return {"loss": total / samples, **measured} if loss and samples else measured


def _batches(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(x, y, weight or None), from arrays in pieces that fit any memory, or as the user's batches are."""
    arrays = isinstance(data, tuple) and len(data) in (2, 3) and hasattr(data[0], "shape")
    if arrays:
        pieces = range(0, len(data[0]), PIECE)
        data = [tuple(part[start : start + PIECE] for part in data) for start in pieces]
    for batch in data:
        yield keras.utils.unpack_x_y_sample_weight(batch)


def _number(job: Job, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise JobError(f"metric {name!r} of job {type(job).__name__} is no number: {value!r}") from error
    if not math.isfinite(number):
        raise JobError(f"metric {name!r} of job {type(job).__name__} is {number}")
    return number
