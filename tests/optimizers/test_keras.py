"""Keras is the oracle: the same formula, step by step; in a soak for a thousand steps.

Asserted, on CPU, with gradients and slots in the normal range of float32:
slots of every rule are bit-equal to Keras's, and so are the weights of sgd,
momentum, nesterov, adagrad, adadelta, rmsprop and lion. TensorFlow's float32 power differs
from the correctly rounded one by an ulp at a few steps, so the weights of adam,
adamw and adamax are bit-equal where powers are exact (both betas 0 or 0.5), and
within `ADAM_RTOL` of the distance travelled otherwise, as nadam's, which has the powers of 0.96, always are.
ftrl's sum of gradients sees a power, too, and its weights are made from that sum alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from psserver.optimizers import OptimizerError, build, names
from tests.repetitions import repetitions

pytestmark = pytest.mark.tensorflow

STEPS = repetitions(10, soak=1000, fast=10)
SHAPES = ((), (3, 1, 4, 2), (1000,))
# For rules that see rows and columns of them.
MATRICES = (*SHAPES, (30, 20), (7, 1), (1, 5))
ADAM_RTOL = 1e-6

CASES: list[tuple[str, dict[str, object], str, dict[str, object]]] = [
    # ours, its knobs, the class in Keras, its extra arguments
    ("sgd", {}, "SGD", {}),
    ("momentum", {}, "SGD", {"momentum": 0.9}),
    ("nesterov", {}, "SGD", {"momentum": 0.9, "nesterov": True}),
    ("adagrad", {}, "Adagrad", {}),
    ("adagrad", {"learning_rate": 0.1, "initial_accumulator_value": 0.0, "epsilon": 1e-3}, "Adagrad", {}),
    ("rmsprop", {}, "RMSprop", {}),
    ("rmsprop", {"centered": True, "momentum": 0.7, "rho": 0.95, "learning_rate": 0.01}, "RMSprop", {}),
    ("adam", {}, "Adam", {}),
    ("adam", {"beta_1": 0.5, "beta_2": 0.5, "epsilon": 1e-3, "learning_rate": 0.02}, "Adam", {}),
    ("adam", {"amsgrad": True, "beta_2": 0.9}, "Adam", {}),
    ("adamw", {"weight_decay": 0.1, "learning_rate": 0.05}, "AdamW", {}),
    ("adamw", {"beta_1": 0.5, "beta_2": 0.5, "weight_decay": 0.3, "learning_rate": 0.01}, "AdamW", {}),
    ("adamw", {"amsgrad": True, "beta_1": 0.0, "beta_2": 0.5, "weight_decay": 0.0}, "AdamW", {}),
    ("nadam", {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3, "learning_rate": 0.02}, "Nadam", {}),
    ("adamax", {"beta_1": 0.5, "beta_2": 0.9, "learning_rate": 0.02}, "Adamax", {}),
    ("adadelta", {"learning_rate": 1.0, "rho": 0.5, "epsilon": 1e-3}, "Adadelta", {}),
    ("lion", {"beta_1": 0.5, "beta_2": 0.7, "learning_rate": 0.01}, "Lion", {}),
    ("ftrl", {}, "Ftrl", {}),
    (
        "ftrl",
        {
            "learning_rate": 0.1,
            "initial_accumulator_value": 1.0,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
            "l2_shrinkage_regularization_strength": 0.03,
            "beta": 0.5,
        },
        "Ftrl",
        {},
    ),
    *(
        (name, {"weight_decay": 0.3, "learning_rate": 0.01}, kind, more)
        for name, kind, more in (
            ("sgd", "SGD", {}),
            ("momentum", "SGD", {"momentum": 0.9}),
            ("nesterov", "SGD", {"momentum": 0.9, "nesterov": True}),
            ("adagrad", "Adagrad", {}),
            ("rmsprop", "RMSprop", {}),
            ("adam", "Adam", {}),
            ("nadam", "Nadam", {}),
            ("adamax", "Adamax", {}),
            ("adadelta", "Adadelta", {}),
            ("lion", "Lion", {}),
            ("ftrl", "Ftrl", {}),
        )
    ),
]
# Rules that see whole variables.
WHOLE = {"lamb": "Lamb", "adafactor": "Adafactor"}


@pytest.fixture(scope="module")
def keras() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "tensorflow")
        keras = pytest.importorskip("keras")
    assert keras.backend.backend() == "tensorflow"
    with pytest.importorskip("tensorflow").device("CPU:0"):
        yield keras


def gradients(step: int, sizes: list[int]) -> list[np.ndarray]:
    """Gradients over four decades; every fifth step, half of them are zero."""
    generator = np.random.default_rng(step)
    made = []
    for size in sizes:
        g = generator.standard_normal(size) * 10.0 ** generator.uniform(-3, 1, size)
        if step % 5 == 4:
            g[generator.random(size) < 0.5] = 0
        made.append(g.astype(np.float32))
    return made


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float32).reshape(-1) for a in arrays])


class SideBySide:
    """Keras's optimizer on variables of several shapes, ours on one arena that holds them all."""

    def __init__(
        self,
        keras: Any,
        config: dict[str, object],
        oracle: Any,
        shapes: tuple[tuple[int, ...], ...] = SHAPES,
    ) -> None:
        generator = np.random.default_rng(7)
        self.shapes = shapes
        starts = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
        self.sizes = [start.size for start in starts]
        self.variables = [keras.Variable(start) for start in starts]
        self.oracle = oracle
        self.oracle.build(self.variables)
        stops = np.cumsum(self.sizes)
        pieces = [
            (str(n), int(stop) - size, int(stop))
            for n, (stop, size) in enumerate(zip(stops, self.sizes, strict=True))
        ]
        self.ours = build(config).bound({str(n): shape for n, shape in enumerate(shapes)}, pieces)
        self.x = flat(starts)
        self.state = self.ours.init(self.x.size)
        self.version = 0

    def step(self) -> None:
        parts = gradients(self.version, self.sizes)
        self.oracle.apply([g.reshape(shape) for g, shape in zip(parts, self.shapes, strict=True)])
        self.step_ours()

    def step_ours(self) -> None:
        parts = gradients(self.version, self.sizes)
        out = np.empty_like(self.x)
        self.ours.update(self.x, flat(parts), out, self.state, version=self.version, lr_scale=1.0)
        self.x = out
        self.version += 1

    def weights(self) -> np.ndarray:
        return flat([variable.numpy() for variable in self.variables])

    def slot(self, name: str) -> np.ndarray:
        own = [v for v in self.oracle.variables if v.name.endswith(f"_{name}")]
        assert len(own) == len(self.shapes)
        return flat([variable.numpy() for variable in own])


def oracle_of(keras: Any, kind: str, knobs: dict[str, object], more: dict[str, object]) -> Any:
    return getattr(keras.optimizers, kind)(**knobs, **more)


@pytest.mark.parametrize(("name", "knobs", "kind", "more"), CASES)
def test_many_steps_equal_keras(
    keras: Any, name: str, knobs: dict[str, object], kind: str, more: dict[str, object]
) -> None:
    pair = SideBySide(keras, {"name": name, **knobs}, oracle_of(keras, kind, knobs, more))
    exact = name not in ("adam", "adamw", "adamax", "nadam", "ftrl") or (
        name != "nadam" and all(knobs.get(beta) in (0.0, 0.5) for beta in ("beta_1", "beta_2"))
    )
    travelled = np.zeros_like(pair.x)
    for _ in range(STEPS):
        before = pair.x
        pair.step()
        travelled += np.abs(pair.x - before)
        for slot in pair.ours.slots:
            if slot == "linear":
                # An ulp of the powers, whose difference is divided by the rate.
                atol = 1e-5 / float(str(pair.ours.config["learning_rate"]))
                np.testing.assert_allclose(pair.state[slot], pair.slot(slot), rtol=1e-3, atol=atol)
                continue
            np.testing.assert_array_equal(pair.state[slot], pair.slot(slot), f"{slot} @{pair.version}")
        if exact:
            np.testing.assert_array_equal(pair.x, pair.weights(), f"weights @{pair.version}")
    if name == "ftrl":
        np.testing.assert_allclose(pair.x, pair.weights(), rtol=1e-3, atol=1e-5)
        return
    error = np.abs(pair.x - pair.weights())
    assert (error <= ADAM_RTOL * (travelled + np.abs(pair.x))).all(), error.max()
    assert travelled.min() > 0


@pytest.mark.parametrize("knobs", [{}, {"weight_decay": 0.3, "learning_rate": 0.01}])
@pytest.mark.parametrize(("name", "kind"), WHOLE.items())
def test_rules_on_whole_variables_equal_keras(
    keras: Any, name: str, kind: str, knobs: dict[str, object]
) -> None:
    """Norms and means are summed in another order there, in float32: within 1e-4 of the way that a weight went."""
    pair = SideBySide(
        keras, {"name": name, **knobs}, oracle_of(keras, kind, {**knobs, "clipnorm": None}, {}), MATRICES
    )
    travelled = np.zeros_like(pair.x)
    for _ in range(STEPS):
        before = pair.x
        pair.step()
        travelled += np.abs(pair.x - before)
        if name == "lamb":
            for slot in pair.ours.slots:
                np.testing.assert_array_equal(pair.state[slot], pair.slot(slot), f"{slot} @{pair.version}")
    error = np.abs(pair.x - pair.weights())
    assert (error <= 1e-4 * travelled + 1e-6 * np.abs(pair.x)).all(), (error / travelled).max()
    assert travelled.min() > 0


@pytest.mark.parametrize(("name", "kind"), [("adagrad", "Adagrad"), ("lamb", "Lamb")])
@pytest.mark.parametrize("knob", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_clipped_gradients_are_those_of_keras(keras: Any, knob: str, name: str, kind: str) -> None:
    """Of which some are within the limit, and some beyond."""
    clip = {knob: {"clipvalue": 0.5, "clipnorm": 8.0, "global_clipnorm": 15.0}[knob]}
    config = {"name": name, "learning_rate": 0.05, **clip}
    pair = SideBySide(keras, config, oracle_of(keras, kind, {"learning_rate": 0.05, **clip}, {}), MATRICES)
    free = SideBySide(
        keras, {**config, knob: 0}, oracle_of(keras, kind, {"learning_rate": 0.05}, {}), MATRICES
    )
    for _ in range(STEPS):
        pair.step()
        free.step_ours()
    np.testing.assert_allclose(pair.x, pair.weights(), rtol=1e-5, atol=2e-5)
    assert np.abs(pair.x - free.x).max() > 1e-3


def test_a_gradient_within_the_limit_keeps_its_bits_and_one_that_is_not_finite_is_told() -> None:
    x, state = np.ones(3, np.float32), build({"name": "sgd"}).init(3)
    for knob in ("clipnorm", "global_clipnorm"):
        plain, clipped = np.empty(3, np.float32), np.empty(3, np.float32)
        gradient = np.array([0.1, -0.3, 0.7], np.float32)
        build({"name": "sgd"}).update(x, gradient.copy(), plain, state, version=0, lr_scale=1.0)
        ours = build({"name": "sgd", knob: 1.0})
        assert ours.update(x, gradient.copy(), clipped, state, version=0, lr_scale=1.0)
        np.testing.assert_array_equal(plain, clipped)
        gradient[1] = np.inf
        assert not ours.update(x, gradient, clipped, state, version=0, lr_scale=1.0)


def test_a_dead_row_and_a_dead_column_are_no_division_of_zero_by_zero() -> None:
    """Keras' Adafactor gives NaN there: a pixel that is always black, and a unit that never fires."""
    ours = build({"name": "adafactor"}).bound({"kernel": (40, 30)}, [("kernel", 0, 1200)])
    x, state = np.ones(1200, np.float32), ours.init(1200)
    for version in range(20):
        gradient = np.full((40, 30), 100, np.float32)
        gradient[3], gradient[:, 7] = 0, 0
        out = np.empty_like(x)
        assert ours.update(x, gradient.reshape(-1), out, state, version=version, lr_scale=1.0)
        x = out
    moved = x.reshape(40, 30) != 1
    assert not moved[3].any() and not moved[:, 7].any() and moved.sum() == 39 * 29


def test_a_variable_in_parts_is_refused() -> None:
    """Its norm is on no server."""
    ours = build({"name": "lamb"})
    with pytest.raises(OptimizerError, match=r"'lamb' scales each .* 'kernel' would lie on several .* adamw"):
        ours.bound({"kernel": (4, 3), "bias": (2,)}, [("kernel", 0, 9), ("bias", 9, 11)])


def test_defaults_are_those_of_keras(keras: Any) -> None:
    kinds = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
    kinds |= {"lamb": "Lamb", "adafactor": "Adafactor"}
    kinds |= {"nadam": "Nadam", "adamax": "Adamax", "adadelta": "Adadelta", "lion": "Lion", "ftrl": "Ftrl"}
    for name, kind in kinds.items():
        theirs = getattr(keras.optimizers, kind)().get_config()
        for knob, value in build({"name": name}).config.items():
            if knob == "weight_decay" and name != "adamw":
                assert (value, theirs[knob]) == (0.0, None)
            elif knob != "name":
                assert np.float32(value) == np.float32(theirs[knob]), (name, knob)


@pytest.mark.parametrize(("name", "kind"), [("momentum", "SGD"), ("adamw", "AdamW")])
def test_the_schedule_is_on_the_same_step_as_in_keras(keras: Any, name: str, kind: str) -> None:
    """A change of rate between two steps would show at once: the values differ a hundredfold."""
    table = {"boundaries": [3, 8], "values": [0.1, 0.001, 0.01]}
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(**table)
    more = {"momentum": 0.9} if kind == "SGD" else {}
    config = {"name": name, "learning_rate": {"schedule": "piecewise", **table}}
    pair = SideBySide(keras, config, getattr(keras.optimizers, kind)(learning_rate=schedule, **more))
    for _ in range(15):
        pair.step()
        np.testing.assert_allclose(pair.x, pair.weights(), rtol=1e-6, atol=1e-7)


def test_variables_may_be_excluded_from_weight_decay(keras: Any) -> None:
    """On one arena: the excluded variable's elements lie between two that decay."""
    called = ["a/kernel", "a/bias", "b/kernel"]
    oracle = keras.optimizers.SGD(learning_rate=0.05, momentum=0.9, weight_decay=0.1)
    generator = np.random.default_rng(3)
    starts = [generator.standard_normal(size).astype(np.float32) for size in (40, 7, 30)]
    variables = [
        keras.Variable(start, name=name.split("/")[1]) for start, name in zip(starts, called, strict=True)
    ]
    oracle.exclude_from_weight_decay(var_names=["bias"])
    oracle.build(variables)
    config = {"name": "momentum", "learning_rate": 0.05, "weight_decay": 0.1}
    ours = build({**config, "exclude_from_weight_decay": ["*/bias"]})
    assert build(ours.config) == ours
    sizes = [("a/kernel", 0, 40), ("a/bias", 40, 47), ("b/kernel", 47, 77)]
    ours = ours.bound({name: (stop - start,) for name, start, stop in sizes}, sizes)
    x, state = flat(starts), ours.init(77)
    for version in range(70):
        parts = gradients(version, [40, 7, 30])
        oracle.apply(parts)
        out = np.empty_like(x)
        ours.update(x, flat(parts), out, state, version=version, lr_scale=1.0)
        x = out
        np.testing.assert_array_equal(x, flat([variable.numpy() for variable in variables]))


def test_an_excluded_variable_that_is_not_there_is_named() -> None:
    ours = build({"name": "adamw", "exclude_from_weight_decay": ["dense/bia"]})
    with pytest.raises(OptimizerError, match=r"did you mean .dense/bias"):
        ours.bound({"dense/kernel": (2, 3), "dense/bias": (3,)}, [])
    with pytest.raises(OptimizerError, match="must be a list of words"):
        build({"name": "adamw", "exclude_from_weight_decay": "bias"})
    with pytest.raises(OptimizerError, match="no weight_decay"):
        build({"name": "delayed-nesterov", "exclude_from_weight_decay": ["bias"]})


def test_every_rule_has_an_oracle() -> None:
    """That of delayed-nesterov has a test of its own."""
    assert {*(case[0] for case in CASES), *WHOLE, "delayed-nesterov"} == set(names())
