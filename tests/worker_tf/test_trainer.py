"""The Trainer around the step: batches, evaluation, devices, and whose fault an exception is."""

import os
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from pswire.model.plan import VariableSpec, make_plan
from psworker import Job
from psworker.backends import DeviceError
from psworker.backends.tensorflow.quiet import without_chatter
from psworker.job.errors import JobError
from psworker.keras.jobs.batches import numbered_batches
from psworker.keras.jobs.compiling import compiled
from psworker.keras.jobs.evaluation import evaluate
from psworker.keras.jobs.trainer import JobTrainer
from tests.probes import traces_of

pytestmark = pytest.mark.tensorflow

layers = keras.layers
X, Y = np.arange(24, dtype=np.float32).reshape(8, 3), np.ones((8, 1), np.float32)


def dense():
    return keras.Sequential([keras.Input((3,)), layers.Dense(1)])


@pytest.mark.parametrize(
    "dataset",
    [
        list("abc"),
        tf.data.Dataset.from_tensor_slices([b"a", b"b", b"c"]),
        lambda epoch: iter("abc"),
        lambda epoch: list("abc"),
    ],
    ids=["list", "tf.data", "function of generators", "function of lists"],
)
def test_batches_are_numbered_over_epochs_and_skipped(dataset):
    assert [number for number, _ in numbered_batches(dataset, 3, 0)] == list(range(9))
    assert [number for number, _ in numbered_batches(dataset, 3, 4)] == [4, 5, 6, 7, 8]
    assert list(numbered_batches(dataset, 3, 9)) == []


def test_a_function_of_the_epoch_hears_the_epoch():
    assert list(numbered_batches(lambda epoch: [epoch] * 2, 2, 1)) == [(1, 0), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (iter("abc"), "can be read once, but there are 2 epochs"),
        (7, "must be an iterable of batches or a function of the epoch.*got int"),
        (lambda epoch: None, "got NoneType"),
        (lambda epoch: [1][epoch + 5], "the job's dataset raised IndexError"),
        (lambda epoch: (1 / n for n in (1, 0)), "the job's dataset raised ZeroDivisionError"),
    ],
)
def test_datasets_that_are_none(dataset, words):
    with pytest.raises(JobError, match=words):
        list(numbered_batches(dataset, 2, 0))


@pytest.mark.parametrize(
    ("dataset", "first", "last"),
    [
        ([(X, Y)] * 4, 12, 12),
        (tf.data.Dataset.from_tensors((X, Y)).repeat(4), 12, 12),
        # Known when an epoch has ended.
        (lambda epoch: iter([(X, Y)] * 4), 0, 12),
        (tf.data.Dataset.from_tensors((X, Y)).repeat(4).filter(lambda x, y: True), 0, 12),
    ],
    ids=["list", "tf.data", "function of generators", "tf.data that does not know"],
)
def test_a_trainer_says_how_much_data_there_is_once_it_knows(trained, dataset, first, last):
    trainer, _, _ = trained(dense, dataset)
    batches = trainer.batches(0, 1, 0, 3)
    next(batches)
    assert trainer.total_batches == first
    list(batches)
    assert trainer.total_batches == last


def test_a_worker_without_any_batch_is_done_at_once(trained):
    trainer, _, _ = trained(dense, [])
    assert list(trainer.batches(0, 1, 0, 5)) == []


@pytest.mark.parametrize(
    ("loss", "batch", "words"),
    [
        (lambda model, batch: model(batch[0]), (X, Y), r"must be one number.*shape \(None, 1\)"),
        ("mse", (X[:, :2], Y), "a training step of job .* raised ValueError: .*expected axis -1"),
        (lambda model, batch: 1 / 0, (X, Y), "raised ZeroDivisionError: division by zero"),
        (
            lambda model, batch: tf.gather(
                tf.reduce_sum(model(batch[0]), 1), tf.cast(batch[0][0, 2] + 90, tf.int32)
            ),
            (X, Y),
            r"raised InvalidArgumentError: .* = 92 is ",
        ),
    ],
    ids=["no scalar", "wrong width", "user's bug", "while it runs"],
)
def test_a_failing_step_is_the_jobs_fault_in_words(trained, loss, batch, words):
    trainer, _, flats = trained(dense, loss=loss)
    with pytest.raises(JobError, match=words) as caught:
        trainer.step(flats, batch)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "build", "words"),
    [
        ("no_such_loss", dense, "Keras knows no loss named 'no_such_loss'"),
        (3, dense, "must be a method .*got int 3"),
        ("mse", lambda: [tf.Variable(1.0)], "needs a model to call.*got? ?.*list|model\\(\\) returned list"),
    ],
)
def test_a_loss_that_is_none(trained, loss, build, words):
    with pytest.raises(JobError, match=words):
        trained(build, loss=loss)


def test_a_model_that_raises():
    class Broken(Job):
        loss = "mse"

        def model(self):
            raise RuntimeError("no data here")

        def dataset(self, worker_index, worker_count, seed): ...

    with pytest.raises(
        JobError, match=r"model\(\) of job Broken raised RuntimeError: no data here"
    ) as caught:
        JobTrainer(Broken(), device="cpu", deterministic=False)
    assert "in model" in caught.value.details


def test_another_models_plan_is_refused(trained):
    trainer, _, _ = trained(dense)
    with pytest.raises(ValueError, match="other variables"):
        trainer.attach(make_plan([VariableSpec("w", (3,))], 1))


class Measured(Job):
    loss = keras.losses.MeanAbsoluteError()
    metrics = ("mse",)

    def model(self):
        return dense()

    def dataset(self, worker_index, worker_count, seed):
        return []

    def heldout(self):
        return X, Y


def test_evaluation_by_heldout_data_and_metrics():
    trainer = JobTrainer(Measured(), device="cpu", deterministic=False)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    weights = [np.array([[1], [0], [0]], np.float32), np.array([0.5], np.float32)]
    error = X[:, :1] + 0.5 - Y
    for _ in range(2):
        measured = trainer.evaluate(plan.scatter(weights))
        assert measured == pytest.approx({"loss": np.abs(error).mean(), "mse": np.square(error).mean()})


def test_a_metric_of_several_numbers_is_its_mean_and_each_of_them():
    """As it stands on the class, made before any model."""

    class Classes(Job):
        loss = "categorical_crossentropy"
        metrics: ClassVar = [keras.metrics.F1Score()]

        def model(self):
            return keras.Sequential([keras.Input((3,)), layers.Dense(2, activation="softmax")])

        def dataset(self, worker_index, worker_count, seed):
            return []

        def heldout(self):
            return [(X, np.eye(2, dtype=np.float32)[[0, 1] * 4])]

    job = Classes()
    model, _ = compiled(job, job.model())
    found = evaluate(job, model)
    assert {"f1_score", "f1_score_0", "f1_score_1", "loss"} <= set(found)
    assert found["f1_score"] == pytest.approx((found["f1_score_0"] + found["f1_score_1"]) / 2)


def test_evaluation_counts_samples_not_batches(monkeypatch):
    job = Measured()
    model, _ = compiled(job, dense())
    whole = evaluate(job, model)
    monkeypatch.setattr("psworker.keras.jobs.evaluation.PIECE", 3)
    assert evaluate(job, model) == pytest.approx(whole, rel=1e-5)
    monkeypatch.setattr(job, "heldout", lambda: [(X[:5], Y[:5]), (X[5:], Y[5:])])
    assert evaluate(job, model) == pytest.approx(whole, rel=1e-5)


def test_evaluation_of_ones_own(monkeypatch):
    job = Measured()
    monkeypatch.setattr(job, "evaluate", lambda model: {"score": np.float32(0.5)})
    assert evaluate(job, None) == {"score": 0.5}
    monkeypatch.setattr(job, "evaluate", lambda model: {"score": "high"})
    with pytest.raises(JobError, match="'score' .* is no number: 'high'"):
        evaluate(job, None)
    monkeypatch.setattr(job, "evaluate", lambda model: {"score": float("nan")})
    with pytest.raises(JobError, match="is nan"):
        evaluate(job, None)
    monkeypatch.setattr(job, "evaluate", lambda model: None)
    with pytest.raises(JobError, match=r"no Keras model.*evaluate\(model\)"):
        evaluate(job, [])
    monkeypatch.setattr(job, "heldout", lambda: None)
    assert evaluate(job, []) == {}


def test_mixed_precision_is_the_models_own_affair(trained):
    def build():
        return keras.Sequential([keras.Input((3,)), layers.Dense(4, dtype="mixed_bfloat16"), layers.Dense(1)])

    trainer, _, flats = trained(build, loss="mse", servers=2)
    result = trainer.step(flats, (X, Y))
    assert all(spec.dtype == "float32" for spec, _ in trainer.specs)
    assert all(flat.dtype == np.float32 and np.isfinite(flat).all() for flat in result.flats)
    assert result.norm > 0


@pytest.mark.parametrize("wanted", ["gpu:99", "tpu", "gpu", "gpu:-1"])
def test_a_device_that_is_not_there(wanted):
    words = "no 'gpu:99': TensorFlow sees cpu" if wanted == "gpu:99" else "'auto', 'cpu' or 'gpu:N'"
    with pytest.raises(DeviceError, match=words):
        JobTrainer(Measured(), device=wanted, deterministic=False)


def test_chatter_is_dropped_and_everything_else_comes_through(capfd):
    chatter = (
        b"I0000 00:00:1.2 7 port.cc:153] oneDNN\nWARNING: All log messages before absl::InitializeLog() is\n"
    )
    with without_chatter():
        os.write(2, chatter + b"E0000 00:00:1.2 7 real.cc:1] real trouble\n")
    assert capfd.readouterr().err == "E0000 00:00:1.2 7 real.cc:1] real trouble\n"
    with pytest.raises(ZeroDivisionError), without_chatter():
        os.write(2, chatter)
        _ = 1 / 0
    assert capfd.readouterr().err.encode() == chatter


def test_the_first_batch_finds_a_warm_step_that_left_nothing_behind(trained):
    class Counting(tf.Module):
        def __init__(self):
            super().__init__()
            self.w, self.calls = tf.Variable([1.0]), tf.Variable(0)

    def loss(model, batch):
        model.calls.assign_add(1)
        return tf.reduce_sum(model.w * batch)

    trainer, _, flats = trained(Counting, [np.ones(4, "f")] * 2, loss)
    for number, batch in trainer.batches(0, 1, 0, 1):
        assert (traces_of(trainer), int(trainer.model.calls)) == (1, number)
        trainer.step(flats, batch)


class Noisy(Job):
    loss = "mse"

    def model(self):
        return keras.Sequential(
            [keras.Input((3,)), layers.GaussianNoise(1.0), layers.Dropout(0.5), layers.Dense(1)]
        )

    def dataset(self, worker_index, worker_count, seed):
        return [(X, Y)] * 4


def test_what_a_step_draws_depends_on_the_batch_alone():
    """Whether the worker began there or came to it, and however often it computed before."""
    trainer = JobTrainer(Noisy(), device="cpu", seed=1)
    plan = make_plan([spec for spec, _ in trainer.specs], 1)
    trainer.attach(plan)
    flats = plan.scatter([value for _, value in trainer.specs])

    def gradients(worker, skip, again=1):
        batches = trainer.batches(worker, 2, 7, 1, skip)
        return {
            n: [trainer.step(flats, batch).flats[0].copy() for _ in range(again)][-1] for n, batch in batches
        }

    whole, resumed, other = gradients(0, 0, again=2), gradients(0, 2), gradients(1, 0)
    assert [(whole[n] == resumed[n]).all() for n in (2, 3)] == [True, True]
    different = [whole[0], whole[1], whole[2], whole[3], other[0]]
    assert len({each.tobytes() for each in different}) == 5
