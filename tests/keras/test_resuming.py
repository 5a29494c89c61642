"""A worker that is started again begins at the epoch and batch where its part of the job is, with what its layers draw
there."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import psworker.keras as pk
from psworker.keras.fit.resuming import GoesOn, Resumption
from tests.keras.in_process import servers
from tests.service.serving import PATIENCE, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

BATCH, STEPS, EPOCHS = 8, 5, 3
X = np.arange(BATCH * STEPS, dtype=np.float32)[:, None] / 100
Y = 2 * X


class Dies(keras.callbacks.Callback):
    """Raises behind so many batches, once `workers` have come that far."""

    def __init__(self, batches: int, workers: threading.Barrier | None = None) -> None:
        super().__init__()
        self.left, self.workers = batches, workers

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            if self.workers is not None:
                self.workers.wait(PATIENCE)
            raise KeyboardInterrupt


def model(rate: float = 0.5) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4), keras.layers.Dropout(rate), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((1,)), *layers])
    made.compile(keras.optimizers.SGD(0.05), loss="mse", run_eagerly=True)
    return made


def data(kind: str) -> dict[str, Any]:
    if kind == "arrays":
        return {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False}
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    return {"x": dataset.repeat(), "shuffle": False, "steps_per_epoch": STEPS}


@pytest.mark.parametrize(
    ("kind", "batches"), [("steps_per_epoch", 7), pytest.param("arrays", 10, marks=pytest.mark.nightly)]
)
def test_a_worker_that_was_killed_goes_on_at_the_batch_that_it_has_not_committed(
    kind: str, batches: int
) -> None:
    plain = model(rate=0)
    plain.fit(**data(kind), epochs=EPOCHS, verbose=0)
    with servers() as hosts:
        killed, again = model(rate=0), model(rate=0)
        with pk.distribute(killed, hosts), pytest.raises(KeyboardInterrupt):
            killed.fit(**data(kind), epochs=EPOCHS, verbose=0, callbacks=[Dies(batches)])
        with pk.distribute(again, hosts) as job:
            history = again.fit(**data(kind), epochs=EPOCHS, verbose=0)
        assert job.version == EPOCHS * STEPS and history.epoch == list(range(batches // STEPS, EPOCHS))
    for one, other in zip(again.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_workers_that_are_started_again_draw_what_they_would_have_drawn() -> None:
    """All of several, so that no update is made of fewer."""
    found = [trained_by_two(dies) for dies in (0, 7)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def trained_by_two(dies: int) -> list[Any]:
    """The weights behind `fit` in two workers, which both die behind so many batches, unless 0, and begin again."""
    with servers(workers=2) as hosts, ThreadPoolExecutor(2) as pool:
        for last in (False, True) if dies else (True,):
            models, met = [model(), model()], threading.Barrier(2)
            jobs = [pk.distribute(each, hosts, task_index=k) for k, each in enumerate(models)]
            assert [job.session.rank for job in jobs] == [0, 1]
            streams = [job.session._link._stream for job in jobs]
            if dies and last:
                # Both have a ticket before one goes on: a barrier waits for no worker that has only joined.
                for stream in streams:
                    stream.tell(lambda engine: engine.ready())
                wait_until(lambda: all(stream._engine.grants for stream in streams), "both grants")  # noqa: B023
            else:
                wait_until(lambda: all(stream._sender for stream in streams), "both sessions")  # noqa: B023

            def work(index: int, models: Any = models, met: Any = met, last: bool = last) -> None:
                callbacks = [] if last else [Dies(dies, met)]
                own = {"x": X[index::2], "y": Y[index::2], "batch_size": BATCH // 2, "shuffle": False}
                models[index].fit(**own, epochs=EPOCHS, verbose=0, callbacks=callbacks)

            for each in [pool.submit(work, index) for index in range(2)]:
                if last:
                    each.result()
                else:
                    with pytest.raises(KeyboardInterrupt):
                        each.result()
            for job in jobs:
                job.close()
        weights: list[Any] = models[0].get_weights()
        return weights


def test_what_has_no_length_cannot_be_gone_on_with() -> None:
    with servers() as hosts:
        killed, again = model(), model()
        with pk.distribute(killed, hosts), pytest.raises(KeyboardInterrupt):
            killed.fit(**data("arrays"), epochs=EPOCHS, verbose=0, callbacks=[Dies(3)])
        batches = ((X[:BATCH], Y[:BATCH]) for _ in range(100))
        with pk.distribute(again, hosts), pytest.raises(pk.FitError, match="give fit steps_per_epoch"):
            again.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0)


def test_what_one_fit_does_not_pass_over_the_next_one_does() -> None:
    found = Resumption()
    for epochs, rest in ((2, 0), (3, 4), (3, 0)):
        found.begin_fit()
        if epochs == 3 and not rest:
            found.place(24, 10, 3, 0)  # the third fit begins with its first batch
            assert found.epochs == 0 and next_of(found) == 0
        else:
            with pytest.raises(GoesOn):
                found.place(24, 10, epochs, 0)
            if rest:
                assert (found.epochs, next_of(found)) == (0, rest)


def test_fits_of_phases_that_are_over_are_passed_over_whole() -> None:
    """Also where this worker's last batch of them was committed, or where it never came to it."""
    found = Resumption()
    for _ in range(2):
        found.begin_fit()
        with pytest.raises(GoesOn):
            found.place(4, None, 3, 2)
        assert found.passes_over and found.epochs == 3
    found.begin_fit()
    with pytest.raises(GoesOn):
        found.place(0, 10, 3, 0)  # of a later Join: the first one counts
    assert (found.passes_over, found.epochs, next_of(found)) == (False, 0, 4)


def next_of(found: Resumption) -> int:
    batch: int = found.next(iter(range(100)))
    return batch
