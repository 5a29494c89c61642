"""Measure a trained model as its job says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psworker.backends.keras import metrics_of
from psworker.job import Job
from psworker.job.errors import JobError
from psworker.tensorflow.objectives.training import Training

# A metric with more numbers than these is reported by its mean only: a line of metrics.jsonl has at most 100.
MOST_PARTS = 32

PIECE = 512  # samples evaluated at once, where `heldout()` gives whole arrays


def evaluate(job: Job, model: Any) -> dict[str, float]:
    """Call `job.evaluate(model)`, or else measure the Keras loss and metrics of job or model on `job.heldout()`.

    Raises JobError when a metric is no finite number, and when there is
    held-out data but `model()` returned no Keras model to measure on it.
    """
    metrics = job.evaluate(model)
    if metrics is None:
        metrics = _on_heldout(job, model)
    return {
        each: number for name, value in metrics.items() for each, number in _numbers(job, str(name), value)
    }


def measured_names(job: Job, model: Any) -> list[str] | None:
    """Name what `evaluate` will measure, from one batch of held-out data; None where only `job.evaluate` knows.

    Raises JobError, as `evaluate`.
    """
    if type(job).evaluate is not Job.evaluate:
        return None
    data = job.heldout()
    first = next(_batches(data), None) if data is not None else None
    metrics = {} if first is None else _measured(job, model, [first])
    return [each for name, value in metrics.items() for each in (str(name), *_parts(str(name), value))]


def _on_heldout(job: Job, model: Any) -> dict[str, Any]:
    data = job.heldout()
    return {} if data is None else _measured(job, model, data)


def _measured(job: Job, model: Any, data: Any) -> dict[str, Any]:
    if not isinstance(model, keras.Model):
        raise JobError(
            f"job {type(job).__name__} has held-out data, but model() returned no Keras model to measure: "
            "write evaluate(model)"
        )
    training = Training(job, model)
    # A metric goes on from one evaluation to the next unless it is reset.
    for metric in metrics_of(model):
        metric.reset_state()
    by_keras = training.compiled or getattr(model, "loss", None) is not None
    measured: dict[str, Any] = {}
    for x, y, weight in _batches(data):
        if by_keras:
            # Loss, metrics, a `test_step` of the model's own.
            batch = tuple(part for part in (x, y, weight) if part is not None)
            measured = model.test_step(tf.nest.map_structure(_tensor, batch))
        else:
            measured = model.compute_metrics(x, y, model(x, training=False), weight)
    measured = dict(measured)
    if not by_keras:
        # There is no loss that Keras knows.
        measured.pop("loss", None)
    return measured


def _tensor(part: Any) -> Any:
    return part if tf.is_tensor(part) else tf.convert_to_tensor(part)


def _batches(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (x, y, weight or None): arrays in pieces that fit any memory, or the user's own batches."""
    # A tuple of batches holds tuples.
    whole = isinstance(data, tuple) and len(data) in (2, 3) and not isinstance(data[0], tuple)
    if whole and all(hasattr(part, "shape") for part in tf.nest.flatten(data)):
        pieces = range(0, int(tf.nest.flatten(data)[0].shape[0]), PIECE)
        data = [tf.nest.map_structure(itemgetter(slice(start, start + PIECE)), data) for start in pieces]
    for batch in data:
        yield keras.utils.unpack_x_y_sample_weight(batch)


def _numbers(job: Job, name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield a metric; one of several numbers, as `F1Score()` by class, as its mean and each number by its index."""
    parts = _parts(name, value)
    mean = np.asarray(value).mean() if np.ndim(value) == 1 and not isinstance(value, str) else value
    yield name, _number(job, name, mean)
    yield from (
        (each, _number(job, each, part)) for each, part in zip(parts, value if parts else (), strict=True)
    )


def _parts(name: str, value: Any) -> list[str]:
    """Name a metric's numbers, if it has several, and not too many."""
    several = np.ndim(value) == 1 and not isinstance(value, str) and len(value) <= MOST_PARTS
    return [f"{name}_{index}" for index in range(len(value))] if several else []


def _number(job: Job, name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise JobError(f"metric {name!r} of job {type(job).__name__} is no number: {value!r}") from error
    if not math.isfinite(number):
        raise JobError(f"metric {name!r} of job {type(job).__name__} is {number}")
    return number
