"""Workers with unequal data under `sync`: the update of a round is the mean over samples, and an epoch's logs are over
all samples, the same in all workers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras as pk
from psworker import WorkUnits
from psworker.keras.fit.data import cut
from tests.keras.in_process import in_threads, servers

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

WORKERS, SAMPLES, BATCH, EPOCHS = 3, 193, 32, 2
DICE = np.random.default_rng(7)
X = DICE.normal(size=(SAMPLES, 6)).astype(np.float32)
Y = (X @ DICE.normal(size=(6, 1))).astype(np.float32)


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
    )
    made.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"], run_eagerly=True)
    return made


def fits_in_threads(
    hosts: str, fits: list[dict[str, Any]], make: Callable[[], keras.Model] = model, **more: Any
) -> list[tuple[dict[str, Any], list[Any], int]]:
    """What each worker's history and weights came to, and the samples of its last epoch."""
    models = [make() for _ in fits]

    def work(index: int) -> tuple[dict[str, Any], list[Any], int]:
        with pk.distribute(models[index], hosts, task_index=index, **more):
            history = models[index].fit(batch_size=BATCH, epochs=EPOCHS, verbose=0, **fits[index])
            return history.history, models[index].get_weights(), history.epoch

    return in_threads(work, len(fits))


class Rounds(keras.utils.PyDataset):  # type: ignore[misc]
    """What all workers train on in a round is one batch of these samples."""

    def __init__(self, rounds: list[Any]) -> None:
        super().__init__()
        self.rounds = rounds

    def __len__(self) -> int:
        return len(self.rounds)

    def __getitem__(self, index: int) -> Any:
        return X[self.rounds[index]], Y[self.rounds[index]]


def alone(
    order: Callable[[int], list[Any]], make: Callable[[], keras.Model] = model
) -> tuple[dict[str, Any], list[Any]]:
    """One process, whose batches in an epoch are `order(epoch)`."""
    made, found = make(), {}
    for epoch in range(EPOCHS):
        told = {"shuffle": False, "verbose": 0, "validation_batch_size": BATCH}
        history = made.fit(Rounds(order(epoch)), validation_data=(X, Y), **told).history
        for name, values in history.items():
            found.setdefault(name, []).extend(values)
    return found, made.get_weights()


def test_the_last_batch_of_one_worker_is_an_update_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """65, 64 and 64 samples: worker 0 has a batch more, of one sample."""
    with servers(workers=WORKERS) as hosts:
        more = {"shuffle": False, "validation_data": (X, Y)}
        fits = [{"x": X[i::WORKERS], "y": Y[i::WORKERS], **more} for i in range(WORKERS)]
        workers = fits_in_threads(hosts, fits)
    unexpected = ("same_data", "loss_reduction")
    assert not [each for each in caplog.records if getattr(each, "event", "") in unexpected]
    rows = np.arange(SAMPLES)
    parts = [rows[i::WORKERS] for i in range(WORKERS)]
    rounds = [np.concatenate([part[k * BATCH : (k + 1) * BATCH] for part in parts]) for k in range(3)]
    history, weights = alone(lambda epoch: rounds)
    same(workers, history, weights)


@pytest.mark.parametrize("policy", ["sync", pytest.param("async", marks=pytest.mark.nightly)])
def test_dealt_epochs_end_together(policy: str) -> None:
    """Seven batches of three workers: worker 0 has the last one for itself, and the others wait for it."""
    with servers(workers=WORKERS, policy=policy) as hosts:
        fits = [{"x": X, "y": Y, "validation_data": (X, Y)} for _ in range(WORKERS)]
        workers = fits_in_threads(hosts, fits, sharding="units")
    if policy == "sync":
        work = WorkUnits(samples=SAMPLES, batch_size=BATCH)

        def order(epoch: int) -> list[Any]:
            units = [work.of(epoch, number, 0).indices for number in range(work.count)]
            return [np.concatenate(units[k : k + WORKERS]) for k in range(0, len(units), WORKERS)]

        same(workers, *alone(order))
    else:
        assert all(found == workers[0][0] for found, _, _ in workers)
        assert set(workers[0][0]) >= {"loss", "val_loss"} and len(workers[0][0]["val_loss"]) == EPOCHS


def same(workers: list[Any], history: dict[str, Any], weights: list[Any]) -> None:
    for found, values, epochs in workers:
        assert epochs == list(range(EPOCHS))
        for name, expected in history.items():
            np.testing.assert_allclose(found[name], expected, rtol=2e-6, err_msg=name)
        for one, other in zip(values, weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    for name in history:
        assert len({tuple(found[name]) for found, _, _ in workers}) == 1


def test_workers_that_were_all_given_the_same_data_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each shuffles it in an order of its own."""
    with servers(workers=2) as hosts:
        fits_in_threads(hosts, [{"x": X[:64], "y": Y[:64]} for _ in range(2)])
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
