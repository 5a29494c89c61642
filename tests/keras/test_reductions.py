"""Losses by which several workers under `sync` are not one process: `fit` warns of each once, and of no other."""

import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras as pk
from psworker.backends.keras import reductions as backend
from psworker.backends.keras.reductions import warn_of_reduction
from tests.keras.in_process import in_threads, servers

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

MSE = keras.losses.MeanSquaredError


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Each kind is named once in a process."""
    yield
    backend._warn.cache_clear()
    backend._warn_of_mask.cache_clear()


def named(caplog: pytest.LogCaptureFixture) -> list[Any]:
    found = [each for each in caplog.records if getattr(each, "event", "") == "loss_reduction"]
    return [each.fields["reduction"] for each in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("mse", []),
        (MSE(), []),
        (MSE(reduction="mean"), []),
        (lambda y, p: keras.ops.mean((y - p) ** 2), []),
        (None, []),
        (MSE(reduction="sum"), ["sum"]),
        (MSE(reduction=None), ["None"]),
        (MSE(reduction="mean_with_sample_weight"), ["mean_with_sample_weight"]),
        ({"a": MSE(), "b": [MSE(reduction="sum"), MSE(reduction="sum")]}, ["sum"]),
    ],
)
def test_reductions(loss: Any, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    warn_of_reduction(loss)
    warn_of_reduction(loss)
    assert named(caplog) == expected


@pytest.mark.parametrize(("last", "expected"), [("dense", ["mask"]), ("lstm", [])])
def test_outputs_with_a_mask(last: str, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    ends = keras.layers.Dense(1) if last == "dense" else keras.layers.LSTM(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2, mask_zero=True), ends])
    warn_of_reduction("mse", model)
    assert named(caplog) == expected


@pytest.mark.usefixtures("jobs_end")
def test_fit_warns_where_workers_are_several(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def train(index: int) -> None:
        with pk.distribute(models[index], hosts, task_index=index):
            models[index].fit(np.full((4, 2), index, "f"), np.ones((4, 1), "f"), batch_size=2, verbose=0)

    for workers, expected in ((1, []), (2, ["sum"])):
        models = [
            keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
            for _ in range(workers)
        ]
        for model in models:
            model.compile("sgd", MSE(reduction="sum"), run_eagerly=True)
        with servers(workers=workers) as hosts:
            in_threads(train, workers)
        assert named(caplog) == expected
