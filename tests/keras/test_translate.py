"""Every optimizer of Keras: the server's equal of it, which the server accepts, or a sentence with the nearest."""

from typing import Any

import numpy as np
import pytest

from psserver.optimizers import build

pytestmark = pytest.mark.tensorflow

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")

from psworker.backends.keras.step import unwrapped  # noqa: E402
from psworker.keras.slots import slot_lists  # noqa: E402
from psworker.keras.translate import keras_row, translate, warn_of_clipping, worker_clips  # noqa: E402
from psworker.optimizers import OPTIMIZERS  # noqa: E402

o = keras.optimizers
TRANSLATED: list[tuple[Any, dict[str, Any]]] = [
    (o.SGD(), {"name": "sgd", "learning_rate": 0.01}),
    (o.SGD(0.5, nesterov=True), {"name": "sgd", "learning_rate": 0.5}),
    (o.SGD(momentum=0.9), {"name": "momentum", "momentum": 0.9}),
    (
        o.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        {"name": "nesterov", "momentum": 0.9, "weight_decay": 0.1},
    ),
    (o.Adam(0.003, beta_2=0.9), {"name": "adam", "learning_rate": 0.003, "beta_1": 0.9, "beta_2": 0.9}),
    (o.Adam(amsgrad=True), {"name": "adam", "amsgrad": True, "epsilon": 1e-7}),
    (o.AdamW(), {"name": "adamw", "weight_decay": 0.004}),
    (o.AdamW(weight_decay=0.0), {"name": "adamw", "weight_decay": 0.0}),
    (o.Nadam(), {"name": "nadam", "beta_1": 0.9}),
    (o.Adamax(), {"name": "adamax", "beta_2": 0.999}),
    (o.Adagrad(), {"name": "adagrad", "initial_accumulator_value": 0.1}),
    (o.Adadelta(), {"name": "adadelta", "rho": 0.95}),
    (o.RMSprop(centered=True, momentum=0.5), {"name": "rmsprop", "centered": True, "momentum": 0.5}),
    (o.Lion(), {"name": "lion", "beta_2": 0.99}),
    (o.Ftrl(beta=0.5), {"name": "ftrl", "beta": 0.5}),
    (o.Lamb(0.01, beta_1=0.8), {"name": "lamb", "beta_1": 0.8, "learning_rate": 0.01}),
    (o.Adafactor(relative_step=False), {"name": "adafactor", "epsilon_1": 1e-30, "beta_2_decay": -0.8}),
    (o.LossScaleOptimizer(o.SGD(0.2)), {"name": "sgd", "learning_rate": 0.2}),
]


@pytest.mark.parametrize(("optimizer", "expected"), TRANSLATED, ids=lambda value: str(value)[:40])
def test_translated_to_what_the_server_builds(optimizer: Any, expected: dict[str, Any]) -> None:
    config = pk.translate(optimizer)
    built = build(config).config
    for key, value in expected.items():
        assert built[key] == value
    for key, value in config.items():
        assert built[key] == value


@pytest.mark.parametrize("optimizer", [each for each, _ in TRANSLATED], ids=lambda value: str(value)[:40])
def test_slots_are_those_of_the_server_in_its_order(optimizer: Any) -> None:
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.build([keras.Variable(np.zeros((2, 3)), name="v")])
    found = slot_lists(optimizer)
    slots = build(pk.translate(optimizer)).slots
    if "rows" in slots:
        assert [each.shape for (each,) in found] == [(2,), (3,)]
    else:
        assert [each.name for (each,) in found] == [f"v_{slot}" for slot in slots]


def test_every_row_of_the_table_is_tried() -> None:
    found = [keras_row(unwrapped(optimizer)) for optimizer, _ in TRANSLATED]
    assert [row for row in OPTIMIZERS["keras"] if row not in found] == []


def test_schedules_are_those_of_the_server() -> None:
    s = keras.optimizers.schedules
    for schedule in (
        s.ExponentialDecay(0.1, 10, 0.5, staircase=True),
        s.CosineDecay(0.1, 50),
        s.CosineDecay(0.01, 50, alpha=0.1, warmup_target=0.2, warmup_steps=10),
        s.PiecewiseConstantDecay([3, 8], [0.1, 0.001, 0.01]),
        s.PolynomialDecay(0.1, 50, power=2.0),
        s.InverseTimeDecay(0.1, 7, 0.3, staircase=True),
        s.CosineDecayRestarts(0.1, 16, t_mul=1.0, m_mul=0.5, alpha=0.01),
    ):
        ours = build(pk.translate(keras.optimizers.SGD(schedule)))
        for version in range(70):
            np.testing.assert_allclose(ours.rate(version), float(schedule(version)), rtol=2e-6)


class Mine(keras.optimizers.Adam):  # type: ignore[misc]
    pass


class Late(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __call__(self, step: Any) -> Any:
        return 0.1

    def get_config(self) -> dict[str, Any]:
        return {}


REFUSED = [
    (lambda: o.Muon(), "no Muon: it multiplies matrices .* keras.optimizers.AdamW, or Lamb"),
    (lambda: o.ScheduleFreeAdamW(), "two sets of weights.* keras.optimizers.AdamW"),
    (
        lambda: o.MultiOptimizer(o.OptimizerMap(o.SGD())),
        "run one for all; .* a psworker.keras.RemoteOptimizer for each",
    ),
    (lambda: Mine(), r"of your own \(Mine\).* keras.optimizers.Adam, of which it is a subclass"),
    (lambda: o.Ftrl(learning_rate_power=-1.0), r"learning_rate_power=-1.0\): expected -0.5"),
    (lambda: o.SGD(lambda: 0.1), "a function of yours"),
    (lambda: o.SGD(Late()), "Late is a schedule of yours.* PiecewiseConstantDecay comes near"),
    (lambda: o.SGD(o.schedules.CosineDecayRestarts(0.1, 10, t_mul=0.5)), "expected t_mul >= 1"),
    (lambda: o.SGD(o.schedules.ExponentialDecay(0.1, 10, 1.5)), "grows"),
    (lambda: o.SGD(use_ema=True, ema_overwrite_frequency=5), "ema_overwrite_frequency"),
    (lambda: o.SGD(use_ema=True, gradient_accumulation_steps=5), "use one of the two"),
    (
        lambda: o.SGD(o.schedules.CosineDecay(0.1, 9), gradient_accumulation_steps=5),
        "counts a LearningRateSchedule in",
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_refused_with_the_nearest(make: Any, words: str) -> None:
    with pytest.raises(pk.TranslationError, match=words):
        pk.translate(make())


def test_constraints_are_refused_and_excluded_variables_named() -> None:
    kept = keras.layers.Dense(2, kernel_constraint="max_norm")
    model = keras.Sequential([keras.Input((2,)), kept])
    model.compile(optimizer="adam", loss="mse")
    with pytest.raises(pk.TranslationError, match="has a constraint"):
        pk.distribute(model)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="last")])
    model.compile(optimizer="sgd", loss="mse")
    model.trainable_variables[0].overwrite_with_gradient = True
    with pytest.raises(pk.TranslationError, match="takes its gradient as its new value"):
        pk.distribute(model)
    model.trainable_variables[0].overwrite_with_gradient = False
    optimizer = keras.optimizers.SGD(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer=optimizer, loss="mse")
    with pk.distribute(model) as job:
        (excluded,) = job.optimizer["exclude_from_weight_decay"]
        assert excluded.endswith("last/bias")


@pytest.mark.parametrize("knob", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_gradients_are_clipped_once(knob: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the server where there is one; norms by the workers where there are several."""
    optimizer = o.LossScaleOptimizer(o.SGD(0.1, **{knob: 0.5}))
    one, two = translate(optimizer), translate(optimizer, servers=2)
    assert one[knob] == 0.5 and build(one).config[knob] == 0.5
    by_value = knob == "clipvalue"
    assert (knob in two) == by_value
    assert not worker_clips(optimizer, one)
    assert worker_clips(optimizer, two) != by_value
    for config, workers in ((one, 3), (two, 1), (two, 3)):
        warn_of_clipping(optimizer, config, workers)
    told = [each for each in caplog.records if getattr(each, "event", "") == "workers_clip"]
    assert len(told) == (0 if by_value else 1)
