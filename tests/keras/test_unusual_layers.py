"""Layers that keep something else than weights, or nothing: `fit` trains them as plain Keras does."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras as pk
from pswire.model.plan import make_plan
from psworker import Job
from psworker.keras.jobs.trainer import JobTrainer
from tests.keras.in_process import servers

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600), pytest.mark.usefixtures("jobs_end")]

layers = keras.layers
WORDS = ["good", "bad", "fine", "poor"]
TEXTS = np.array([f"{WORDS[k % 4]} {WORDS[k % 3]}" for k in range(32)])
DICE = np.random.default_rng(3)
Y = DICE.normal(size=(32, 1)).astype("f")
NUMBERS = DICE.normal(size=(32, 1)).astype("f")


def texts() -> Any:
    words = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=2)
    inputs = keras.Input((), dtype="string")
    ends = [words, layers.Embedding(8, 3), layers.Flatten(), layers.Dense(1)]
    return keras.Sequential([inputs, *ends]), tf.constant(TEXTS)


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.words = layers.TextVectorization(vocabulary=WORDS, output_mode="multi_hot")
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(self.words(x))


def subclassed() -> Any:
    return Subclassed(), tf.constant(TEXTS)


@pytest.mark.parametrize("make", [texts, subclassed])
def test_layers_that_are_never_built(make: Callable[[], Any]) -> None:
    found = []
    for distributed in (False, True):
        keras.utils.set_random_seed(1)
        model, x = make()
        # One is compiled by TensorFlow, which takes longest.
        model.compile(keras.optimizers.SGD(0.1), loss="mse", run_eagerly=make is not texts)
        job = pk.distribute(model) if distributed else None
        model.fit(x, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        if job is not None:
            job.close()
        found.append(model.get_weights())
    assert found[0]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class Weighed(keras.Model):  # type: ignore[misc]
    """A loss with a weight that a callback moves, as in a VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False, name="beta")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x: Any) -> Any:
        found = self.dense(x)
        self.add_loss(self.beta * keras.ops.mean(keras.ops.square(found)))
        return found

    def train_step(self, data: Any) -> Any:
        self.count.assign_add(1.0)
        return super().train_step(data)


def weighed() -> Weighed:
    keras.utils.set_random_seed(1)
    model = Weighed()
    model(NUMBERS)
    model.compile(keras.optimizers.SGD(0.1), loss="mse", run_eagerly=True)
    return model


def trained(
    model: Weighed, x: Any, y: Any, moment: str = "on_epoch_begin", sets: bool = True, **more: Any
) -> Any:
    def act(epoch: int, logs: Any = None) -> None:
        if sets:
            model.beta.assign((epoch + 1) / 10)

    seen: list[float] = []
    acts = keras.callbacks.LambdaCallback(**{moment: act})
    watches = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(float(model.beta))
    )
    told = {"epochs": 3, "shuffle": False, "verbose": 0, "callbacks": [acts, watches]}
    model.fit(x, y, **{"batch_size": 8, **told, **more})
    return model.get_weights(), seen


def test_a_callback_sets_a_variable_that_is_not_trained() -> None:
    expected, _ = trained(weighed(), NUMBERS, Y, "on_train_batch_begin")
    model = weighed()
    with pk.distribute(model):
        found, _ = trained(model, NUMBERS, Y, "on_train_batch_begin")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.cluster
def test_a_variable_that_is_set_between_two_fits_begins_another_job() -> None:
    """Servers take its value at the beginning of a job."""
    model = weighed()
    with servers() as hosts, pk.distribute(model, hosts) as job:
        model.fit(NUMBERS, Y, batch_size=8, shuffle=False, verbose=0)
        assert job._steps.follows() == "another phase"
        model.beta.assign(0.25)
        assert job._steps.follows() == "another job"


class Masked(keras.layers.Layer):
    """A causal mask, with -inf where nobody looks."""

    def __init__(self) -> None:
        super().__init__()
        upper = np.triu(np.full((3, 3), -np.inf, "f"), 1)
        mask = keras.initializers.Constant(upper)
        self.mask = self.add_weight(shape=(3, 3), initializer=mask, trainable=False, name="mask")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        return keras.ops.softmax(self.scale * x[:, None, :] + self.mask)[:, :, 0]


SQUARES = DICE.normal(size=(32, 3)).astype("f")


def masked() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(3), Masked(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def test_a_constant_need_not_be_finite() -> None:
    told = {"batch_size": 8, "shuffle": False, "verbose": 0}
    plain, model = masked(), masked()
    plain.fit(SQUARES, Y, **told)
    with pk.distribute(model):
        model.fit(SQUARES, Y, **told)
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


class MaskedJob(Job):
    loss = "mse"

    def model(self) -> Any:
        return keras.Sequential([keras.Input((3,)), layers.Dense(3), Masked(), layers.Dense(1)])

    def dataset(self, worker_index: int, worker_count: int, seed: int) -> Any:
        return [(SQUARES, Y)]


def test_a_constant_of_a_job() -> None:
    trainer = JobTrainer(MaskedJob(), device="cpu")
    plan = make_plan([spec for spec, _ in trainer.specs], 1)
    trainer.attach(plan)
    flats = plan.scatter([values for _, values in trainer.specs])
    ((_, batch),) = trainer.batches(0, 1, 0, 1)
    assert np.isfinite(trainer.step(flats, batch).norm) and np.isfinite(flats[0]).all()
