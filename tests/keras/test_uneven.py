"""Data of several workers: cut by their numbers, and the same for all by mistake."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras as pk
from psworker.keras.fit.data import cut
from tests.keras.in_process import in_threads, servers

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

DICE = np.random.default_rng(7)
X = DICE.normal(size=(64, 6)).astype(np.float32)
Y = (X @ DICE.normal(size=(6, 1))).astype(np.float32)


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"], run_eagerly=True)
    return made


class Rounds(keras.utils.PyDataset):  # type: ignore[misc]
    """What all workers train on in a round is one batch of these samples."""

    def __init__(self, rounds: list[Any]) -> None:
        super().__init__()
        self.rounds = rounds

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, index: int) -> Any:
        return X[self.rounds[index]], Y[self.rounds[index]]


def test_workers_that_were_all_given_the_same_data_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each shuffles it in an order of its own."""
    models = [model(), model()]

    def work(index: int) -> None:
        with pk.distribute(models[index], hosts, task_index=index):
            models[index].fit(X[:64], Y[:64], batch_size=32, verbose=0)

    with servers(workers=2) as hosts:
        in_threads(work, 2)
    found = [each for each in caplog.records if getattr(each, "event", "") == "same_data"]
    assert len(found) == 2 and 'sharding="auto"' in found[0].getMessage()


def test_batches_are_cut_by_their_numbers() -> None:
    dataset = {"x": tf.data.Dataset.from_tensor_slices(np.arange(10)).batch(2)}
    cut(dataset, 1, 2)
    assert [each.tolist() for each in dataset["x"].as_numpy_iterator()] == [[2, 3], [6, 7]]
    given = {"x": Rounds([np.array([k]) for k in range(5)])}
    cut(given, 1, 3)
    assert [given["x"][k][0].tolist() for k in range(len(given["x"]))] == [X[[1]].tolist(), X[[4]].tolist()]


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (iter(()), "cuts arrays, keras.utils.PyDataset and tf.data.Dataset"),
        (tf.data.Dataset.range(8).shuffle(8).batch(2), "shuffles this one in another order"),
    ],
)
def test_what_cannot_be_cut_is_said(x: Any, words: str) -> None:
    with pytest.raises(pk.FitError, match=words):
        cut({"x": x}, 0, 2)
