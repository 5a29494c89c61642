"""The digests of models: equal for what computes the same, and different for what does not, by layer."""

import json
import logging
from typing import Any

import keras
import numpy as np
import pytest

from psserver.coordinator.functions import Function, same
from psworker.function import LAYERS, function_of
from tests.promises import promise

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


def layers(made: Any) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(function_of(made))
    return found


def alike(one: Any, other: Any) -> bool:
    """Servers let workers with these models train together."""
    return same(Function("a", function_of(one)), Function("b", function_of(other)))


def differ(one: Any, other: Any) -> set[str]:
    pairs = zip(layers(one), layers(other), strict=True)
    alone = ((a, json.dumps([a]), json.dumps([b])) for a, b in pairs)
    return {
        a[0].partition(" ")[0] for a, mine, its in alone if not same(Function("a", mine), Function("b", its))
    }


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


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", "") == "function_undecided"
    ]


class Standardize(keras.layers.Layer):
    """The natural names for what a layer has from data."""

    def __init__(self, mean: Any, variance: Any, vocabulary: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.mean, self.variance = np.asarray(mean, np.float32), np.asarray(variance, np.float32)
        self.vocabulary = list(vocabulary)

    def call(self, x: Any) -> Any:
        return (x - self.mean) / keras.ops.sqrt(self.variance)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "bin_boundaries": self.variance.tolist(),
            "vocabulary": self.vocabulary,
        }


class Marked(keras.layers.Layer):
    """Variables that do not travel, and arrays in containers."""

    def __init__(self, infinite: int = 0, code: int = 0, nested: float = 0.0) -> None:
        super().__init__()
        mask = np.triu(np.full((3, 3), -np.inf, np.float32), infinite)
        self.mask = self.add_weight(
            shape=(3, 3), initializer=keras.initializers.Constant(mask), trainable=False
        )
        self.code = self.add_weight(
            shape=(), dtype="int32", initializer=keras.initializers.Constant(code), trainable=False
        )
        self.kept = {"all": [np.full(3, nested, np.float32)]}

    def call(self, x: Any) -> Any:
        return x

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config())


class Scaled(keras.Model):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by, self.dense = by, keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x) * self.by


def around(*inner: Any, **compiled: Any) -> Any:
    made = keras.Sequential([keras.Input((3,)), *inner, keras.layers.Dense(1)])
    made.compile("sgd", compiled.pop("loss", "mse"), **compiled)
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: around(Standardize([0.0], [1.0])), lambda: around(Standardize([0.5], [1.0]))),
        (lambda: around(Standardize([0.0], [1.0])), lambda: around(Standardize([0.0], [4.0]))),
        (lambda: around(Standardize(0, 1, ("a", "b"))), lambda: around(Standardize(0, 1, ("b", "a")))),
        (lambda: around(Marked(infinite=1)), lambda: around(Marked(infinite=0))),
        (lambda: around(Marked(nested=1.0)), lambda: around(Marked(nested=5.0))),
        (lambda: around(loss_weights=[1.0]), lambda: around(loss_weights=[9.0])),
        (lambda: around(keras.layers.Dense(2, dtype="mixed_float16")), lambda: around(keras.layers.Dense(2))),
    ],
    ids=["mean", "variance", "vocabulary", "infinite mask", "array in a dict", "loss_weights", "dtype"],
)
@promise("Workers whose layers hold other constants are refused, whatever the constants are called.")
def test_what_a_layer_holds_is_compared_under_any_name(one: Any, other: Any) -> None:
    assert alike(one(), one()) and not alike(one(), other())


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: around(Marked(code=3)), "Marked"),
        (lambda: Scaled(2.0), "Scaled"),
        (lambda: around(keras.layers.Dense(1, activation=lambda x: x * 2)), "Dense"),
        (lambda: around(keras.layers.Dense(1, activation=around)), "Dense"),
        (lambda: around(loss=lambda y, p: keras.ops.abs(y - p)), "loss"),
        (lambda: {"w": np.zeros(3)}, "no Keras model"),
    ],
    ids=["layer", "model", "lambda", "activation", "loss", "other frameworks"],
)
@pytest.mark.filterwarnings("ignore:The object being serialized")
@promise("A worker whose model cannot be compared with the others' says so once, and trains.")
def test_code_of_the_users_is_said_to_be_undecided(
    made: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = function_of(made())
    (said,) = warned(caplog)
    assert name in said
    assert not found or alike(made(), made())


def test_a_model_of_keras_alone_is_decided(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        function_of(model())
        function_of(around(keras.layers.Dense(2, "relu", kernel_regularizer="l2"), loss=keras.losses.Huber()))
    assert not warned(caplog)


def residual(factor: float = 2.0, plus: bool = False, name: str | None = None) -> Any:
    given = keras.Input((4,))
    x = keras.layers.Dense(4, name=name)(given)
    x = keras.ops.relu(x + factor if plus else x * factor) + given
    return keras.Model(given, keras.layers.Dense(1)(x))


@promise("A model that is built again in a notebook is the same model.")
def test_operators_of_a_functional_model_have_no_names() -> None:
    assert alike(residual(), residual())
    # A name may be what elsewhere is a word of a configuration.
    assert alike(residual(), residual(name="relu")) and alike(residual(name="linear"), residual())
    assert not alike(residual(2.0), residual(3.0)) and not alike(residual(2.0), residual(2.0, plus=True))


@promise("Means and variances that were adapted on the same data in another order are the same.")
def test_the_order_of_data_decides_nothing() -> None:
    dice = np.random.default_rng(0)
    data = dice.normal(3, 2, (2000, 5)).astype(np.float32)
    plain = (data - data.mean(0)) / data.std(0)

    def adapted(values: Any, order: int) -> Any:
        made = keras.layers.Normalization()
        made.adapt(np.random.default_rng(order).permutation(values))
        return keras.Sequential([keras.Input((5,)), made])

    for values in (data, plain):
        assert all(alike(adapted(values, 0), adapted(values, order)) for order in range(1, 4))
        assert not alike(adapted(values, 0), adapted(values[:1000], 0))


@promise("Constants that two machines round differently are the same.")
def test_rounding_decides_nothing() -> None:
    steps, rates = np.arange(128), 1 / 10000 ** (np.arange(64) / 64)
    exact = np.sin(np.outer(steps, rates)).astype(np.float32)
    rough = np.sin(np.outer(steps, rates).astype(np.float32))
    assert (exact != rough).any()
    assert alike(around(Standardize(exact, 1.0)), around(Standardize(rough, 1.0)))
    beside = np.nextafter(np.float32(1), np.float32(0))
    assert alike(around(keras.layers.Dropout(0.3)), around(keras.layers.Dropout(0.1 + 0.2)))
    assert alike(around(Standardize(0.0, 1.0)), around(Standardize(0.0, beside)))


@pytest.mark.nightly
def test_plain_values_have_none_and_large_models_are_short() -> None:
    assert function_of({"w": np.zeros(3)}) == ""
    made = keras.Sequential([keras.Input((2,)), *(keras.layers.Dense(2) for _ in range(LAYERS + 50))])
    assert len(layers(made)) == LAYERS + 1 and len(function_of(made)) < 65536


class Leaving(keras.layers.Layer):
    """Its calls leave a loss behind, its folder is its own, and one of its properties is not ready yet."""

    def __init__(self, folder: str = "", strength: float = 1.0) -> None:
        super().__init__()
        self.folder = folder
        self.strength = strength

    @property
    def mean(self) -> float:
        raise ValueError("nothing is fitted")

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(keras.ops.abs(x)))
        return x


@promise("A worker is not refused for what its own calls or folders are.")
def test_what_a_call_leaves_and_where_a_worker_writes_decide_nothing() -> None:
    def made(folder: str, data: float) -> Any:
        found = keras.Sequential([Leaving(folder), keras.layers.Dense(1)])
        found(np.full((2, 3), data, np.float32))
        return found

    assert made("logs/0", 1.0).losses
    assert alike(made("logs/0", 1.0), made("logs/1", 1.3))
