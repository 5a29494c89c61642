"""A Keras model given to connect: what is trained, what is state, and names that do not depend on the process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from psworker.keras import named_variables
from tests.links import connect_link
from tests.service.serving import granted, serving

pytestmark = [
    pytest.mark.tensorflow,
    # Between Keras and numpy, when a model is saved.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

layers = keras.layers
ADAM = ["optimizer={name='adam', learning_rate=0.01}"]
X = np.random.default_rng(0).normal(3.0, 2.0, size=(64, 4)).astype("f")
Y = (X.sum(axis=1, keepdims=True) > 12).astype("f")


def model():
    return keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(momentum=0.5), layers.Dense(8), layers.Dense(1)]
    )


def test_a_models_state_is_no_weight() -> None:
    """In a loop over named variables averages become those of the data, untouched by Adam."""
    made = model()
    variables = named_variables(made)
    with serving(overrides=ADAM) as cluster, connect_link(cluster.hosts, made) as session:
        for _ in range(12):
            grant = granted(session)
            before = session.pull(grant)
            for name, variable in variables.items():
                variable.assign(before[name])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((made(X, training=True) - Y) ** 2)
            trained = {name: variable for name, variable in variables.items() if variable.trainable}
            pushed = tape.gradient(loss, trained)
            state = {name: variables[name] - before[name] for name in variables.keys() - trained.keys()}
            session.push(grant, {**pushed, **state})
            session.commit(grant, samples=len(X), loss=float(loss))
        session.done()
        final = session.plan.gather_by_name(session.pull_final())
    np.testing.assert_allclose(final["batch_normalization/moving_mean"], X.mean(axis=0), rtol=2e-3)
    np.testing.assert_allclose(final["batch_normalization/moving_variance"], X.var(axis=0), rtol=2e-3)


def test_values_by_name_say_or_are_asked_which_are_state(caplog: pytest.LogCaptureFixture) -> None:
    made = model()
    values = {v.path: v.numpy() for v in made.variables}
    averages = [v.path for v in made.non_trainable_variables]

    def kinds(**more):
        caplog.clear()
        with serving() as cluster, connect_link(cluster.hosts, values, **more) as session:
            return [spec.name for spec in session.plan.variables if spec.kind == "state"]

    assert kinds() == []
    assert f"{averages[0]}, {averages[1]} will be trained by the servers' optimizer" in caplog.text
    assert kinds(state=averages) == averages and "will be trained" not in caplog.text
    assert kinds(state=[]) == [] and "will be trained" not in caplog.text
    for variables, state, words in (
        (values, ["moving_men"], "there is no variable 'moving_men'"),
        (made, averages, "expected none beside a Keras model"),
        (keras.Sequential([layers.Dense(1)]), None, "is not built yet"),
    ):
        with pytest.raises(ValueError, match=words):
            connect_link("127.0.0.1:1", variables, state=state)


def test_names_do_not_depend_on_what_the_process_has_built(tmp_path) -> None:
    keras.utils.clear_session()
    first, second = model(), model()
    names = list(named_variables(first))
    assert names[0] == "batch_normalization/gamma" and "dense_1/bias" in names
    assert second.variables[0].path != first.variables[0].path
    assert list(named_variables(second)) == names
    second.save(tmp_path / "second.keras")
    assert list(named_variables(keras.models.load_model(tmp_path / "second.keras"))) == names


def test_names_of_layers_within_models_and_of_ones_own(tmp_path) -> None:
    keras.utils.clear_session()
    x = keras.Input((4,))
    layers.Dense(3)
    inner = keras.Sequential([layers.Dense(2), layers.Dense(2, name="dense_7_of_mine")], name="block_4")
    nested = keras.Model(x, layers.Dense(1, name="head_2")(inner(x)))
    names = list(named_variables(nested))
    nested.save(tmp_path / "nested.keras")
    assert list(named_variables(keras.models.load_model(tmp_path / "nested.keras"))) == names
    assert [name.rpartition("/")[0] for name in names[::2]] == [
        "block_4/dense",
        "block_4/dense_7_of_mine",
        "head_2",
    ]


def test_a_second_model_of_a_process_joins_the_job_of_the_first() -> None:
    keras.utils.clear_session()
    first, second = model(), model()
    with (
        serving() as cluster,
        connect_link(cluster.hosts, first) as one,
        connect_link(cluster.hosts, second) as other,
    ):
        assert one.plan.fingerprint == other.plan.fingerprint
