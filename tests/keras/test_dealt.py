"""`fit` on data that the coordinator deals: each sample counts once per epoch over all workers."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras
from psworker.backends.tensorflow.datasets import DatasetBatches
from psworker.keras import named_variables
from psworker.keras.fit.data import DealtData
from psworker.work import WorkUnits
from tests.keras import fit_script as script
from tests.keras.in_process import servers
from tests.links import connect_link

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]


def model() -> keras.Model:
    """The script's, eager: TensorFlow would compile for most of a test's time."""
    made = script.model()
    made.run_eagerly = True
    return made


class Batches(keras.utils.PyDataset):
    """The script's data, a batch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = script.data()

    def __len__(self) -> int:
        return len(self.x) // script.BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = slice(index * script.BATCH, (index + 1) * script.BATCH)
        return self.x[chosen], self.y[chosen]


def dataset(**shuffled: Any) -> Any:
    made = tf.data.Dataset.from_tensor_slices(script.data())
    return (made.shuffle(200, **shuffled) if shuffled else made).batch(script.BATCH)


@pytest.mark.parametrize("kind", ["dataset", pytest.param("PyDataset", marks=pytest.mark.nightly)])
def test_one_worker_does_what_plain_fit_does(kind: str) -> None:
    """Weights and history, to the bit, where nothing is shuffled."""
    x, y = script.data()
    given = {"x": Batches() if kind == "PyDataset" else dataset()}
    common: dict[str, Any] = {"epochs": 2, "shuffle": False, "verbose": 0}
    common |= {"validation_data": (x, y), "validation_batch_size": len(x)}
    plain = model()
    expected = plain.fit(**given, **common)
    made = model()
    with servers() as address:
        with psworker.keras.distribute(made, address, sharding="units"):
            found = made.fit(**given, **common)
    for one, other in zip(made.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert found.history["loss"] == expected.history["loss"]
    assert found.history["val_loss"] == pytest.approx(expected.history["val_loss"], rel=1e-6)


class Elder(keras.callbacks.Callback):
    """Another worker, which has gone through the first epoch before this one joins, and leaves behind that."""

    def __init__(self, address: str, job: Any, epochs: int, *, apart: bool) -> None:
        super().__init__()
        self.work = replace(WORK, apart=apart)
        self.address, self.job, self.epochs = address, job, epochs
        self.session: Any = None
        self.batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Until its ticket is one of the second epoch."""
        values = {name: variable.numpy() for name, variable in named_variables(self.model).items()}
        self.session = connect_link(
            self.address, values, state=[], optimizer=self.job.optimizer, work=self.work, epochs=self.epochs
        )
        while (grant := self.session.ready()) is not None and grant.part.epoch == 0:
            with self.session.view_flat(grant) as flats:
                payloads = [np.zeros_like(flat) for flat in flats]
            self.session.contribute(grant, payloads, samples=8, loss=1.0, batch=self.batches, ready=True)
            self.batches += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.session is not None:
            self.session.close("leaves")
            self.session = None


WORK = WorkUnits(samples=script.SAMPLES, batch_size=script.BATCH, shuffle=False)


@pytest.mark.parametrize(
    ("metrics", "initial_epoch"), [("all", 4), pytest.param("own", 0, marks=pytest.mark.nightly)]
)
def test_the_history_of_a_late_joiner_begins_with_the_epoch_that_the_job_is_in(
    metrics: str, initial_epoch: int
) -> None:
    """With no zeros for what it has not seen; and what it then trains is all that is left."""
    x, y = script.data()
    made = model()
    with servers(policy="async") as address:
        with psworker.keras.distribute(made, address, sharding="units", metrics=metrics) as job:
            elder = Elder(address, job, 3, apart=metrics == "all")
            found = made.fit(
                x,
                y,
                batch_size=script.BATCH,
                shuffle=False,
                verbose=0,
                initial_epoch=initial_epoch,
                epochs=initial_epoch + 3,
                validation_data=(x, y) if metrics == "own" else None,
                callbacks=[elder],
            )
            applied = job.fates["applied"]
    units = script.SAMPLES // script.BATCH
    assert elder.batches == units
    assert found.epoch == [initial_epoch + 1, initial_epoch + 2]
    assert len(found.history["loss"]) == 2 and min(found.history["loss"]) > 0.1
    assert applied == 2 * units
    # What Keras is told for this fit is over with it.
    assert len(made.fit(x, y, epochs=3, verbose=0).epoch) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation_split": 0.2}, "give validation_data"),
        ({"class_weight": {0: 1.0}}, "give sample_weight"),
        ({"steps_per_epoch": 5}, "an epoch ends when each unit has counted"),
        ({"x": iter([1])}, "deals arrays, keras.utils.PyDataset and tf.data.Dataset"),
        ({"x": Batches()}, "expected it in the Batches only"),
        ({"y": np.zeros((3, 3))}, r"arrays of equally many samples, at least one, got \[3, 96\]"),
    ],
)
def test_what_cannot_be_dealt_is_said(arguments: dict[str, Any], message: str) -> None:
    x, y = script.data()
    with pytest.raises(psworker.keras.FitError, match=message):
        DealtData({"x": x, "y": y, **arguments})


def test_a_batch_of_a_dataset_has_one_number_whatever_was_read_before() -> None:
    """What other workers have is passed by, what comes back is looked for, and a new epoch begins at the start."""
    given = dataset(seed=7, reshuffle_each_iteration=False)
    expected = [x.numpy() for x, _ in given]
    batches = DatasetBatches(given)
    assert batches.count == len(expected) == 12
    for number in (0, 1, 4, 9, 10, 2, 3, 11, 0, 11):
        np.testing.assert_array_equal(batches[number][0].numpy(), expected[number])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dataset().repeat(), "has no end: expected dataset.take"),
        (lambda: dataset().filter(lambda x, y: True), r"assert_cardinality\(n\)"),
        (lambda: dataset().take(0), "without any batch"),
        (lambda: dataset(seed=3), "shuffled anew for each reading"),
        (lambda: dataset(reshuffle_each_iteration=False).map(lambda x, y: (x, y)), "shuffled anew"),
    ],
)
def test_a_dataset_without_numbers_is_refused(make: Any, words: str) -> None:
    tf.random.set_seed(None)
    with pytest.raises(psworker.keras.FitError, match=words):
        DealtData({"x": make()})


def test_a_dataset_that_is_shorter_than_it_says() -> None:
    given = dataset().filter(lambda x, y: tf.reduce_sum(x) > 1e9)
    given = given.apply(tf.data.experimental.assert_cardinality(12))
    with pytest.raises((psworker.keras.FitError, tf.errors.FailedPreconditionError), match="12|cardinality"):
        DealtData({"x": given})


def test_words_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match='expected "none", "auto" or "units"'):
        psworker.keras.distribute(script.model(), "127.0.0.1:1", sharding="batch")
    with pytest.raises(ValueError, match='metrics: expected "all" or "own"'):
        psworker.keras.distribute(script.model(), "127.0.0.1:1", metrics="some")
    with pytest.raises(ValueError, match="one fit per job"):
        psworker.keras.distribute(script.model(), "127.0.0.1:1", sharding="units", stay=True)
    made = psworker.keras.distribute(script.model(), "127.0.0.1:1", sharding="units")
    with pytest.raises(psworker.keras.FitError, match=r"expected fit before \.session"):
        _ = made.session
