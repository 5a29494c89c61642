"""Measure a trained model as its job says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import keras
import numpy as np

from psworker.backends.keras.step import backend, metrics_of, replaced
from psworker.job import Job
from psworker.job.errors import JobError
from psworker.keras.jobs.compiling import by_user

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
    """Measure as Keras does: loss, metrics, a `test_step` of the model's own."""
    if not isinstance(model, keras.Model):
        raise JobError(
            f"job {type(job).__name__} has held-out data, but model() returned no Keras model to measure: "
            "write evaluate(model)"
        )
    if not model.compiled:
        return {}
    # A metric goes on from one evaluation to the next unless it is reset, and here from batch to batch.
    for metric in metrics_of(model):
        metric.reset_state()
    own: dict[str, Any] = {"reset_metrics": lambda: None}
    # Of a model that was compiled here, beside a loss of the job's own, Keras knows metrics only.
    has_loss = by_user(model) or model.loss is not None
    if not has_loss:
        own["compute_loss"] = lambda *_, **__: keras.ops.zeros(())
    if type(model).test_step is not keras.Model.test_step:
        # Without weights of samples where there are none, as in the user's own data.
        plain = model.test_step
        own["test_step"] = lambda *given: plain(
            *given[:-1], tuple(part for part in given[-1] if part is not None)
        )
    measured: dict[str, Any] = {}
    with replaced(model, **own):
        for x, y, weight in _batches(data):
            measured = model.test_on_batch(x, y, weight, return_dict=True)
    loss = {"loss": measured.pop("loss")} if "loss" in measured else {}
    return loss | measured if has_loss else measured


def _batches(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield (x, y, weight or None): arrays in pieces that fit any memory, or the user's own batches."""
    # A tuple of batches holds tuples.
    whole = isinstance(data, tuple) and len(data) in (2, 3) and not isinstance(data[0], tuple)
    leaves = keras.tree.flatten(data) if whole else []
    if whole and all(hasattr(part, "shape") for part in leaves):
        pieces = range(0, int(leaves[0].shape[0]), PIECE)
        data = [keras.tree.map_structure(itemgetter(slice(start, start + PIECE)), data) for start in pieces]
    for batch in data:
        yield keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(framework_tensor, batch))


def framework_tensor(part: Any) -> Any:
    """Return what a batch has, an array say, as the framework computes with it."""
    return backend().framework.tensor(part)


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
