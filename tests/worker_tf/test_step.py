"""A flat step equals a plain GradientTape, for every kind of model and any number of servers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from psworker.backends import APART
from tests.probes import traces_of, variables_of
from tests.repetitions import usually

pytestmark = pytest.mark.tensorflow

layers = keras.layers
RANDOM = np.random.default_rng(0)


def images(count=12):
    return RANDOM.normal(size=(count, 8, 8, 1)).astype("f"), RANDOM.integers(0, 10, count).astype("i4")


def rows(count=12):
    return RANDOM.normal(size=(count, 6)).astype("f"), RANDOM.normal(size=(count, 3)).astype("f")


def words(count=12):
    return RANDOM.integers(0, 9, (count, 4)).astype("i4"), RANDOM.normal(size=(count, 3)).astype("f")


def mlp():
    return keras.Sequential([keras.Input((6,)), layers.Dense(40, "relu"), layers.Dense(3)])


def wide():
    """The first kernel is large enough to leave the graph by itself."""
    return keras.Sequential([keras.Input((6,)), layers.Dense(APART // 6 + 1, "tanh"), layers.Dense(3)])


def regularised():
    return keras.Sequential([keras.Input((6,)), layers.Dense(3, kernel_regularizer="l2")])


def cnn():
    body = [layers.Conv2D(4, 3, use_bias=False), layers.BatchNormalization(momentum=0.5), layers.ReLU()]
    return keras.Sequential([keras.Input((8, 8, 1)), *body, layers.Flatten(), layers.Dense(10)])


def embedding():
    return keras.Sequential([keras.Input((4,)), layers.Embedding(50, 5), layers.Flatten(), layers.Dense(3)])


def unreached():
    """The second output, and what leads to it, is not in the loss."""
    x = keras.Input((6,))
    return keras.Model(x, [layers.Dense(3)(x), layers.Dense(7)(x)])


def same_names():
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = layers.Dense(6, name="same"), layers.Dense(3, name="same")

        def call(self, x):
            return self.two(self.one(x))

    model = Twice()
    model(tf.zeros((1, 6)))
    return model


def bare():
    return {"w": tf.Variable(RANDOM.normal(size=(6, 3)).astype("f")), "b": tf.Variable([0.0, 0.1, 0.2])}


def half():
    return {
        "w": tf.Variable(RANDOM.normal(size=(6, 3)), dtype=tf.float16),
        "b": tf.Variable(0.5, dtype=tf.float64),
    }


def squared(model, batch):
    x, y = batch
    out = model(x, training=True)
    return tf.reduce_mean(tf.square((out[0] if isinstance(out, list) else out) - y))


def crossed(model, batch):
    x, y = batch
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))


def affine(model, batch):
    x, y = batch
    return tf.reduce_mean(
        tf.square(x @ tf.cast(model["w"], tf.float32) + tf.cast(model["b"], tf.float32) - y)
    )


CASES = [
    (mlp, squared, rows),
    (wide, squared, rows),
    (regularised, squared, rows),
    (cnn, crossed, images),
    (embedding, squared, words),
    (unreached, squared, rows),
    (same_names, squared, rows),
    (bare, affine, rows),
    (half, affine, rows),
]


@pytest.mark.parametrize("servers", usually([3], soak=[1]))
@pytest.mark.parametrize(("build", "loss", "data"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_step_equals_a_plain_tape(trained, plain_tape, build, loss, data, servers):
    batch = data()
    trainer, plan, flats = trained(build, loss=loss, servers=servers)
    result = trainer.step(flats, batch)

    variables_of(trainer).put(plan.gather(flats))
    expected_loss, expected = plain_tape(trainer, loss, batch)
    after = variables_of(trainer).values()
    values = plan.gather(result.flats)
    for number, gradient in enumerate(expected):
        np.testing.assert_allclose(values[number], gradient, rtol=2e-5, atol=2e-6)
    for number in range(len(expected), len(values)):
        change = after[number] - plan.gather(flats)[number]
        np.testing.assert_allclose(values[number], change, rtol=1e-5, atol=1e-6)
    norm = np.sqrt(sum(np.sum(np.square(gradient, dtype=np.float64)) for gradient in expected))
    assert result.loss == pytest.approx(expected_loss, rel=1e-5)
    assert result.norm == pytest.approx(norm, rel=1e-4)
    assert result.samples == 12
    assert all(flat.dtype == np.float32 for flat in result.flats)


def test_rows_of_one_variable_on_three_servers(trained):
    """The case above with 3 servers does split a variable: else it would prove less than it says."""
    _, plan, _ = trained(mlp, loss=squared, servers=3)
    homes = [shard.server for shard in plan.shards for piece in shard.slices if piece.variable == 0]
    assert len(set(homes)) > 1


def test_batchnorm_state_travels_as_a_change(trained):
    """Moving mean m -> m * momentum + batch mean * (1 - momentum) (Ioffe & Szegedy 2015)."""
    x, y = images()
    trainer, plan, flats = trained(
        lambda: keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.BatchNormalization(momentum=0.75),
                layers.Flatten(),
                layers.Dense(10),
            ]
        ),
        loss=crossed,
    )
    result = trainer.step(flats, (x, y))
    values = zip(plan.variables, plan.gather(result.flats), strict=True)
    named = {spec.name.split("/")[-1]: value for spec, value in values}
    np.testing.assert_allclose(named["moving_mean"], [0.25 * x.mean()], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(named["moving_variance"], [0.25 * (x.var() - 1)], rtol=1e-4, atol=1e-6)
    again = trainer.step(flats, (x, y))  # the step remembers nothing
    assert [a.tobytes() for a in again.flats] == [b.tobytes() for b in result.flats]


def test_dropout_draws_anew_in_every_step_and_is_the_same_stream_again(trained):
    def build():
        return keras.Sequential([keras.Input((6,)), layers.Dropout(0.5), layers.Dense(3)])

    def losses(worker):
        trainer, _, flats = trained(build, [batch] * 4, squared)
        return [trainer.step(flats, b).loss for _, b in trainer.batches(worker, 2, 5, 1)]

    batch = rows()
    first = losses(0)
    assert len(set(first)) == 4
    assert losses(0) == first
    assert not set(losses(1)) & set(first)


def test_every_worker_builds_the_same_initial_values_and_names(trained):
    (one, _, first), (two, _, second) = trained(cnn), trained(cnn)
    assert [spec for spec, _ in one.specs] == [spec for spec, _ in two.specs]
    assert first[0].tobytes() == second[0].tobytes()


def test_short_batches_need_no_new_trace(trained):
    trainer, _, flats = trained(mlp, loss=squared)
    for count in (12, 12, 5, 1, 12):
        assert trainer.step(flats, rows(count)).samples == count
    assert traces_of(trainer) == 1


def test_sequences_of_many_lengths_need_two_traces(trained):
    def build():
        return keras.Sequential(
            [keras.Input((None,)), layers.Embedding(9, 2), layers.GlobalAveragePooling1D()]
        )

    trainer, _, flats = trained(build, loss=squared)
    for length in (3, 4, 7, 3):
        trainer.step(flats, (np.ones((5, length), "i4"), np.ones((5, 2), "f")))
    assert traces_of(trainer) == 2


def test_dict_batches_and_user_control_flow(trained):
    def loss(model, batch):
        value = tf.reduce_mean(tf.square(batch["x"] @ model["w"]))
        if value > 1e6:  # a Python `if` on a tensor
            value = value * 0.0
        return value

    trainer, _, flats = trained(bare, loss=loss)
    assert trainer.step(flats, {"x": rows()[0]}).samples == 12


def test_keras_losses_by_object_and_name_agree(trained):
    batch = rows()
    by_name, by_object = (
        trained(mlp, loss=loss)[0::2] for loss in ("mean_squared_error", keras.losses.MeanSquaredError())
    )
    assert by_name[0].step(by_name[1], batch).loss == by_object[0].step(by_object[1], batch).loss


def test_sample_weights_count(trained):
    x, y = rows()
    weight = np.zeros(12, "f")
    trainer, _, flats = trained(mlp, loss="mse")
    assert trainer.step(flats, (x, y, weight)).loss == 0
    assert trainer.step(flats, (x, y)).loss > 0
