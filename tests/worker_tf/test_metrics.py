"""What a job's evaluations report, one after the other, is what plain Keras measures on the same weights."""

import keras
import numpy as np
import pytest

from pswire.model.plan import make_plan
from psworker import Job
from psworker.keras.jobs.trainer import JobTrainer
from tests.repetitions import usually
from tests.worker_tf.metric_kinds import GROUPS, KINDS, UPDATED_BY_HAND, X, build, made, names

pytestmark = [
    pytest.mark.tensorflow,
    # Of IoU, which counts in whole numbers.
    pytest.mark.filterwarnings("ignore:You are passing weight as:UserWarning"),
]


def trainer_of(build, **attributes):
    attributes = {"model": lambda self: build(), "dataset": lambda self, *_: [], **attributes}
    return JobTrainer(type("Measured", (Job,), attributes)(), device="cpu", seed=3)


def weights(trainer, number):
    random = np.random.default_rng(number)
    return [random.normal(size=values.shape).astype("f") for _, values in trainer.specs]


def assert_equal(found, expected):
    """Of the numbers that Keras has, each is reported; a metric of several as its mean and each part."""
    wanted = {}
    for name, value in expected.items():
        several = np.ndim(value) == 1
        wanted[name] = float(np.mean(value))
        wanted |= {f"{name}_{k}": float(part) for k, part in enumerate(value)} if several else {}
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)


class ByHand(keras.Model):
    """Counts in a `test_step` of its own, and in a layer."""

    def __init__(self):
        super().__init__()
        self.dense, self.mean, self.sum = (
            keras.layers.Dense(1),
            keras.metrics.Mean("far"),
            keras.metrics.Sum("all"),
        )
        self(np.zeros((1, 4), "f"))

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, y = data
        self.mean.update_state(abs(y - self(x)))
        self.sum.update_state(abs(y - self(x)))
        return {"far": self.mean.result(), "all": self.sum.result()}


def two_outputs():
    x = keras.Input((4,))
    return keras.Model(x, {"bit": keras.layers.Dense(1, "sigmoid")(x), "sum": keras.layers.Dense(1)(x)})


BITS, SUMS = (X[:, :1] > 0).astype("f"), X.sum(axis=1, keepdims=True)
PER_OUTPUT = {
    "loss": {"bit": "binary_crossentropy", "sum": "mse"},
    "metrics": {"bit": ["accuracy"], "sum": ["mae"]},
}
WEIGHTS = 1 + np.arange(len(X), dtype="f") % 2


def plainly(make, arrays, data):
    model = make()
    for variable, array in zip(model.trainable_variables, arrays, strict=True):
        variable.assign(array)
    x, y, weight = (*data, None)[:3]
    return model.evaluate(x, y, 512, 0, weight, return_dict=True)


def assert_evaluations(make, data, plain, **attributes):
    """Three evaluations, each of other weights. `plain`: what plain Keras compiles the model with."""
    trainer = trainer_of(make, heldout=lambda self: data, **attributes)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    trainer.measures()
    for number in range(3):
        arrays = weights(trainer, number)
        assert_equal(trainer.evaluate(plan.scatter(arrays)), plainly(plain, arrays, data))


# Of a Job with metric objects one group is tried daily.
CASES = [
    *(
        pytest.param(group, True, marks=pytest.mark.nightly if group == "categorical" else ())
        for group in GROUPS
    ),
    pytest.param("binary", False, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(
    ("group", "by_user"), usually(CASES, soak=[(group, by) for group in GROUPS for by in (True, False)])
)
def test_three_evaluations_of_every_metric(group, by_user):
    _, _, loss, targets = GROUPS[group]

    def compiled():
        model = build(group)
        own = [made(name) for name in names(group)]
        model.compile("sgd", loss=loss, metrics=own[::2], weighted_metrics=own[1::2], run_eagerly=True)
        return model

    if by_user:
        assert_evaluations(compiled, (X, targets, WEIGHTS), compiled)
    else:
        own = [made(name) for name in names(group)]

        def plain():
            # Keras, too, goes on with an object that another model has used.
            return compiled_with(
                lambda: build(group), loss=loss, metrics=[made(name) for name in names(group)]
            )()

        assert_evaluations(lambda: build(group), (X, targets), plain, loss=loss, metrics=own)


def compiled_with(make, **compiled):
    def both():
        model = make()
        model.compile("sgd", run_eagerly=True, **compiled)
        return model

    return both


def test_metrics_that_a_test_step_updates():
    make = compiled_with(ByHand)
    assert_evaluations(make, (X, SUMS), make)


def test_metrics_by_output():
    data = X, {"bit": BITS, "sum": SUMS}
    assert_evaluations(two_outputs, data, compiled_with(two_outputs, **PER_OUTPUT), **PER_OUTPUT)


def test_a_metric_that_is_not_in_a_list():
    plain = compiled_with(lambda: build("regression"), loss="mse", metrics=["mae"])
    assert_evaluations(lambda: build("regression"), (X, SUMS), plain, loss="mse", metrics="mae")


def test_every_metric_is_in_a_group():
    assert sorted([*UPDATED_BY_HAND, *(name for group in GROUPS for name in names(group))]) == sorted(KINDS)
