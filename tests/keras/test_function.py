"""What a Keras model computes, as a digest that workers compare."""

from typing import Any

import keras
import numpy as np
import pytest

import psworker.keras
from psworker.backends.keras.function import function_of
from psworker.errors import Refused
from tests.keras.in_process import servers

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("jobs_end")]
layers = keras.layers


def model(act: str = "relu", words: str = "ab", name: str | None = None, seed: int = 1) -> Any:
    given = keras.Input((2,), dtype="string")
    found = layers.Embedding(9, 3)(layers.StringLookup(vocabulary=list(words), name=name)(given))
    found = layers.Dropout(0.1, seed=seed)(keras.ops.sum(found, axis=1))
    found = layers.Dense(2, act, kernel_initializer=keras.initializers.Constant(seed))(found)
    return keras.Model(given, layers.Lambda(lambda value: 2 * value)(layers.Softmax()(found)))


def test_layers_vocabularies_and_the_loss_count_and_names_seeds_and_batches_do_not() -> None:
    ours = function_of(model(), "mse")
    assert len(ours) == 64 and ours == function_of(model(name="mine", seed=2), "mse")
    others = [
        (model("tanh"), "mse"),
        (model(words="ac"), "mse"),
        (model(), "mae"),
        (model(), keras.losses.Huber()),
    ]
    assert len({ours, *(function_of(*each) for each in others)}) == 5
    ones = [keras.Sequential([layers.Dense(1)]) for _ in range(2)]
    for size, one in enumerate(ones, 1):
        one(np.zeros((size, 3)))
    assert function_of(ones[0], None) == function_of(ones[1], None) != ""


def test_of_two_workers_the_second_is_refused() -> None:
    def worker(index: int, act: str) -> Any:
        made = keras.Sequential([keras.Input((3,)), layers.Dense(1, act)])
        made.compile("sgd", "mse")
        return psworker.keras.distribute(made, hosts, task_index=index)

    with servers(workers=2) as hosts:
        first = worker(0, "relu")
        assert first.session.size == 2
        with pytest.raises(Refused, match="'w1' computes something else than that of worker 'w0'"):
            _ = worker(1, "tanh").session
        first._steps.leave("enough")
        first.close()
