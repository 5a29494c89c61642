"""What `fit` logs of every metric of Keras on three workers is what plain Keras measures."""

from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras as pk
from tests.keras.in_process import in_threads, servers
from tests.worker_tf.metric_kinds import GROUPS, X, build, made, names

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    # Of IoU, which counts in whole numbers.
    pytest.mark.filterwarnings("ignore:You are passing weight as:UserWarning"),
]
WORKERS, EPOCHS = 3, 2
HELD = slice(0, 15)


def compiled(group: str, rate: float) -> keras.Model:
    keras.utils.set_random_seed(5)
    model = build(group)
    own = [made(name) for name in names(group)]
    model.compile(
        keras.optimizers.SGD(rate),
        loss=GROUPS[group][2],
        metrics=own,
        run_eagerly=True,
    )
    return model


def plainly(model: keras.Model, weights: Any, *data: Any) -> dict[str, Any]:
    model.set_weights(weights)
    found: dict[str, Any] = model.evaluate(*data, batch_size=512, verbose=0, return_dict=True)
    return found


def assert_logged(history: dict[str, Any], epoch: int, expected: dict[str, Any], prefix: str = "") -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(
            history[prefix + name][epoch], value, rtol=1e-6, atol=1e-6, err_msg=prefix + name
        )


@pytest.mark.parametrize("group", GROUPS)
def test_three_workers(group: str) -> None:
    """At a rate of 0 the weights stay, so that an epoch's logs are those of one evaluation on all data."""
    targets = GROUPS[group][3]
    models = [compiled(group, 0.0) for _ in range(WORKERS)]

    def work(index: int) -> dict[str, Any]:
        part = slice(index, None, WORKERS)
        with pk.distribute(models[index], hosts, task_index=index):
            found: dict[str, Any] = (
                models[index]
                .fit(
                    *(X[part], targets[part]),
                    batch_size=4,
                    epochs=EPOCHS,
                    validation_data=(X[HELD], targets[HELD]),
                    validation_batch_size=512,
                    verbose=0,
                )
                .history
            )
            return found

    with servers(workers=WORKERS) as hosts:
        histories = in_threads(work, WORKERS)
    plain, weights = compiled(group, 0.0), models[0].get_weights()
    trained, held = plainly(plain, weights, X, targets), plainly(plain, weights, X[HELD], targets[HELD])
    for history in histories:
        for epoch in range(EPOCHS):
            assert_logged(history, epoch, trained)
            assert_logged(history, epoch, held, "val_")
