"""The digests of models: equal for what computes the same, and different for what does not, by layer."""

import json
import logging
from typing import Any

import keras
import numpy as np
import pytest

from psworker.function import LAYERS, function_of

pytestmark = pytest.mark.tensorflow


def model(
    words: tuple[str, ...] = ("a", "b", "b"),
    numbers: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0),
    seed: int = 0,
    rate: float = 0.5,
    activation: str = "relu",
    loss: str = "mse",
    crossed: bool = False,
) -> keras.Model:
    # Automatic names count the layers of the process; initial values and seeds decide nothing.
    for _ in range(seed):
        keras.layers.Dense(1)
    keras.utils.set_random_seed(seed)
    text, number = keras.Input((1,), dtype="string"), keras.Input((1,))
    lookup, edges, scale = (
        keras.layers.StringLookup(),
        keras.layers.Discretization(num_bins=2),
        keras.layers.Normalization(),
    )
    lookup.adapt(np.array(words))
    edges.adapt(np.array(numbers, np.float32))
    scale.adapt(np.array(numbers, np.float32).reshape(-1, 1))
    # Two of the same kind, and which of them a text goes through.
    first, second = keras.layers.Embedding(9, 2), keras.layers.Embedding(9, 2)
    one, two = first(lookup(text)), second(edges(number))
    parts = [keras.layers.Flatten()(each) for each in ((two, one) if crossed else (one, two))]
    joined = keras.layers.Concatenate()([*parts, scale(number)])
    out = keras.layers.Dense(2, activation, kernel_initializer="he_normal" if seed else "glorot_uniform")(
        keras.layers.Dropout(rate, seed=seed)(joined)
    )
    made = keras.Model([text, number], out)
    made.compile("sgd", loss)
    return made


def layers(made: Any) -> list[list[str]]:
    found: list[list[str]] = json.loads(function_of(made))
    return found


def differ(one: Any, other: Any) -> set[str]:
    pairs = zip(layers(one), layers(other), strict=True)
    return {a[0].partition(" ")[0] for a, b in pairs if a[1:] != b[1:]}


def test_names_seeds_and_initial_values_decide_nothing() -> None:
    assert differ(model(), model(seed=3)) == set()


@pytest.mark.parametrize(
    ("change", "layer"),
    [
        ({"words": ("a", "a", "b", "c")}, {"StringLookup"}),
        ({"numbers": (1.0, 2.0, 30.0, 40.0)}, {"Discretization", "Normalization"}),
        ({"rate": 0.1}, {"Dropout"}),
        ({"activation": "tanh"}, {"Dense"}),
        ({"loss": "mae"}, {"loss"}),
        ({"crossed": True}, {"Functional"}),
    ],
)
def test_what_decides_the_function_is_found_in_its_layer(change: dict[str, Any], layer: set[str]) -> None:
    assert differ(model(), model(**change)) >= layer


def test_text_vectorization_constants_and_layers_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    def texts(*words: str) -> keras.Model:
        vectors = keras.layers.TextVectorization()
        vectors.adapt(list(words))
        return keras.Sequential([vectors, keras.layers.Embedding(9, 2)])

    assert differ(texts("a b"), texts("a b")) == set() and "TextVectorization" in differ(
        texts("a b"), texts("a c")
    )

    class Shift(keras.layers.Layer):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = np.float32(by) * np.ones(3, np.float32)

        def call(self, x: Any) -> Any:
            return x + self.by

    def shifted(by: float) -> keras.Model:
        return keras.Sequential([keras.Input((3,)), Shift(by)])

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert differ(shifted(1.0), shifted(1.0)) == set()
    # Its configuration is not known, which is said; its constant is.
    assert any("Shift" in record.getMessage() for record in caplog.records)
    assert differ(shifted(1.0), shifted(2.0)) == {"Shift"}


def test_what_cannot_be_decided_is_said_once_and_never_refused(caplog: pytest.LogCaptureFixture) -> None:
    def doubled(by: int) -> keras.Model:
        return keras.Sequential(
            [keras.Input((3,)), keras.layers.Lambda(lambda x: by * x), keras.layers.Dense(1)]
        )

    with caplog.at_level(logging.WARNING):
        found = layers(doubled(2))
    assert len(caplog.records) == 1 and "Lambda" in caplog.records[0].getMessage()
    assert found and differ(doubled(2), doubled(3)) == set()


def test_plain_values_have_none_and_large_models_are_short() -> None:
    assert function_of({"w": np.zeros(3)}) == ""
    made = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(LAYERS + 50))])
    assert len(layers(made)) == LAYERS + 1 and len(function_of(made)) < 65536
