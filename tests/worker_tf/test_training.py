"""What a job and its Keras model say together: Keras' own update is the authority for every gradient that is pushed.

With SGD at learning rate 1 the weights move by minus the gradient, after whatever Keras does to it before.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from pswire.model.plan import make_plan
from psworker import Job, JobError
from psworker.keras.jobs.batches import BatchGroup
from psworker.keras.jobs.trainer import JobTrainer
from psworker.loop import train
from psworker.trainers import requested_optimizer
from tests.links import connect_link
from tests.probes import traces_of, variables_of
from tests.service.serving import serving

pytestmark = [
    pytest.mark.tensorflow,
    # Between Keras and numpy, when a rate is read.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

layers, losses, SGD = keras.layers, keras.losses, keras.optimizers.SGD
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(12, 4)).astype("f")
BITS = RANDOM.integers(0, 2, 12).astype("f")
WEIGHTS = np.linspace(0.5, 2, 12).astype("f")


def one(activation="sigmoid"):
    return keras.Sequential([keras.Input((4,)), layers.Dense(5, "relu"), layers.Dense(1, activation)])


def two():
    x = keras.Input((4,))
    hidden = layers.Dense(5, "tanh", kernel_regularizer="l2")(x)
    outputs = {
        "bit": layers.Dense(1, "sigmoid", name="bit")(hidden),
        "sum": layers.Dense(1, name="sum")(hidden),
    }
    return keras.Model(x, outputs)


def mean_fourth(y_true, y_pred):
    return 10 * tf.reduce_mean((tf.reshape(y_true, (-1, 1)) - y_pred) ** 4)


TWO = {"bit": BITS, "sum": X.sum(axis=1)}
FORMS = {
    "a name, labels (n,)": (one, "binary_crossentropy", (X, BITS)),
    "a function of one's own, a scalar": (one, mean_fourth, (X, BITS)),
    "an object": (one, losses.Huber(delta=0.3), (X, BITS, WEIGHTS)),
    "a dict with functions": (two, {"bit": losses.binary_crossentropy, "sum": mean_fourth}, (X, TWO)),
}


def job_of(build, batches=(), **attributes):
    def model(self):
        return build()

    def dataset(self, worker_index, worker_count, seed):
        return list(batches)

    return type("Made", (Job,), {"model": model, "dataset": dataset, **attributes})()


def stepped(job, *batches):
    """(trainer, result, gradient by variable) of one contribution."""
    trainer = JobTrainer(job, device="cpu", seed=3)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    trainer.attach(plan)
    flats = plan.scatter([value for _, value in trainer.specs])
    ((_, batch),) = trainer.batches(0, 1, 0, 1)
    result = trainer.step(flats, batch)
    return trainer, result, plan.gather(result.flats)


def by_keras(build, batches, optimizer, loss):
    """(mean loss, the way that one update took) of Keras alone, from the same weights."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model = build()
    if loss is not None:
        model.compile(optimizer, loss, jit_compile=False)
    model.run_eagerly = True
    before = [v.numpy() for v in model.trainable_variables]
    values = []
    for batch in batches:
        model.reset_metrics()
        found = model.train_on_batch(*batch)
        values.append(np.asarray(found if np.ndim(found) == 0 else found[0]))
    moved = [old - v.numpy() for old, v in zip(before, model.trainable_variables, strict=True)]
    return float(np.mean(values)), moved


def assert_equal(result, gradients, expected_loss, expected):
    assert result.loss == pytest.approx(expected_loss, rel=1e-5)
    assert any(np.abs(gradient).max() > 1e-4 for gradient in expected)
    for found, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_losses_as_keras_takes_them(form):
    build, loss, batch = FORMS[form]
    _, result, gradients = stepped(job_of(build, [batch], loss=loss))
    assert_equal(result, gradients, *by_keras(build, [batch], SGD(1.0), loss))


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ({"clipnorm": 0.01}, "optimizer of the job"),
        ({"global_clipnorm": 0.02}, "compiled"),
        ({"loss_scale_factor": 64.0}, "compiled"),
    ],
)
def test_gradients_are_processed_as_keras_does(how, where):
    def compiled():
        model = one()
        model.compile(SGD(1.0, **how), "mse")
        return model

    said = {"loss": "mse", "optimizer": SGD(1.0, **how)} if where.startswith("opt") else {}
    trainer, result, gradients = stepped(job_of(one if said else compiled, [(X, BITS)], **said))
    loss, expected = by_keras(one, [(X, BITS)], SGD(1.0, **how), "mse")
    assert_equal(result, gradients, loss, expected)
    assert requested_optimizer(trainer)["name"] == "sgd"


def test_accumulation_is_one_contribution_of_several_batches():
    batches = [(X[:6], BITS[:6]), (X[6:10], BITS[6:10]), (X[10:], BITS[10:])]

    def optimizer():
        return SGD(1.0, gradient_accumulation_steps=3, clipnorm=0.05)

    job = job_of(one, [*batches, batches[0]], loss="mse", optimizer=optimizer())
    _, result, gradients = stepped(job)  # what is left at the end is no contribution
    assert result.samples == 12
    assert_equal(result, gradients, *by_keras(one, batches, optimizer(), "mse"))


def test_a_batch_that_fails_leaves_nothing_to_the_next_contribution():
    batches = [(X[:6], BITS[:6]), (X[6:10], BITS[6:10]), (X[10:], BITS[10:])]
    job = job_of(one, batches, loss="mse", optimizer=SGD(1.0, gradient_accumulation_steps=3))
    trainer, result, gradients = stepped(job)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    flats = plan.scatter([value for _, value in trainer.specs])
    with pytest.raises(JobError, match="a training step"):
        trainer.step(flats, BatchGroup((batches[0], (X[6:10, :3], BITS[6:10]), batches[2])))
    again = trainer.step(flats, BatchGroup(tuple(batches)))
    assert again.loss == result.loss
    for one_gradient, expected in zip(plan.gather(again.flats), gradients, strict=True):
        np.testing.assert_array_equal(one_gradient, expected)


class Tripled(keras.Model):
    """A train_step of one's own, which asks for three times the loss."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = layers.Dense(1), layers.BatchNormalization()

    def call(self, x, training=False):
        return self.inner(self.norm(x, training=training))

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = 3.0 * self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def tripled():
    model = Tripled()
    model.compile(SGD(1.0), "mse")
    model(X)
    return model


def test_a_train_step_of_ones_own_is_used():
    batch = (X, BITS.reshape(-1, 1))
    trainer, result, found = stepped(job_of(tripled, [batch]))
    loss, expected = by_keras(tripled, [batch], None, None)
    trained = variables_of(trainer).found.trainable
    assert_equal(result, found[:trained], loss, expected)
    # The layers' state travels as a change.
    state = [v.numpy() for v in trainer.model.non_trainable_variables]
    assert all(np.abs(change).max() > 0 for change in found[trained:]) and len(state) == 2


def test_eager_and_compiled_by_xla_are_the_models_own_affair():
    for more in ({"run_eagerly": True}, {"jit_compile": True}):

        def build(more=more):
            model = one()
            model.compile(SGD(1.0), "mse", **more)
            return model

        trainer, result, gradients = stepped(job_of(build, [(X, BITS)]))
        assert_equal(result, gradients, *by_keras(one, [(X, BITS)], SGD(1.0), "mse"))
        assert traces_of(trainer) == (0 if "run_eagerly" in more else 1)


def test_a_hook_sees_whole_gradients_and_their_variables():
    """Layers at rates of their own, under SGD."""

    def gradients(self, gradients, variables):
        return [g * (0.1 if "dense_1" in v.path else 1.0) for g, v in zip(gradients, variables, strict=True)]

    _, _, plain = stepped(job_of(one, [(X, BITS)], loss="mse"))
    _, _, slowed = stepped(job_of(one, [(X, BITS)], loss="mse", gradients=gradients))
    for rate, before, after in zip([1.0, 1.0, 0.1, 0.1], plain, slowed, strict=True):
        np.testing.assert_allclose(after, before * np.float32(rate), rtol=1e-6)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (lambda self, g, v: g[:1], r"one gradient per variable: expected 4, got 1"),
        (lambda self, g, v: [tf.reduce_sum(each) for each in g], r"must keep the shapes: expected \(4, 5\)"),
    ],
)
def test_a_hook_that_returns_something_else(hook, words):
    with pytest.raises(JobError, match=words):
        stepped(job_of(one, [(X, BITS)], loss="mse", gradients=hook))


def compiled(**more):
    def build():
        model = one()
        model.compile(**{"optimizer": "sgd", "loss": "mse", **more})
        return model

    return build


class Silent(Tripled):
    def train_step(self, data):
        return {"loss": 0.0}


def silent():
    model = Silent()
    model.compile("sgd", "mse")
    return model


REFUSED = {
    "two losses": (compiled(), {"loss": "mse"}, "returned a compiled model, and the job has loss of its own"),
    "two sets of metrics": (compiled(), {"metrics": ("mae",)}, "the job has metrics of its own"),
    "two optimizers": (compiled(), {"optimizer": "adam"}, "the job has optimizer of its own"),
    "no loss": (one, {}, "has no loss: define .* or compile the model"),
    "a loss and a train_step": (Tripled, {"loss": lambda self, model, batch: 0.0}, "train_step of its own"),
    "a metric that is none": (
        one,
        {"loss": "mse", "metrics": ("acuracy",)},
        "Keras knows no metric named 'acuracy'; did you mean \"accuracy\"",
    ),
    "a compiled metric that is none": (
        compiled(metrics=["mea"]),
        {},
        "Keras knows no metric named 'mea'; did you mean",
    ),
    "a loss that is none": (one, {"loss": {"bit": "mze"}}, "Keras knows no loss named 'mze'"),
    "an optimizer that is none": (one, {"loss": "mse", "optimizer": "adm"}, "Keras knows no optimizer 'adm'"),
    "averages": (compiled(optimizer=SGD(1.0, use_ema=True)), {}, "averages weights .*servers"),
    "a scale that changes": (
        compiled(optimizer=keras.optimizers.LossScaleOptimizer(SGD(1.0))),
        {},
        "scales its loss by a number that changes.*loss_scale_factor",
    ),
    "a train_step without gradients": (silent, {}, "train_step applied no gradients"),
    "an optimizer without equal": (
        compiled(optimizer=keras.optimizers.Muon()),
        {},
        "the servers have no Muon.*nearest.*AdamW",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_used_is_refused_in_a_sentence(kind):
    build, attributes, words = REFUSED[kind]
    with pytest.raises(JobError) as caught:
        trainer, _, _ = stepped(job_of(build, [(X, BITS.reshape(-1, 1))], **attributes))
        requested_optimizer(trainer)
    assert re.search(words, str(caught.value)), caught.value


def test_a_compiled_model_is_measured_as_it_was_compiled():
    build = compiled(metrics=["mae", keras.metrics.RootMeanSquaredError(name="root")])
    job = job_of(build, [(X, BITS)], heldout=lambda self: (X, BITS, WEIGHTS))
    trainer, _, _ = stepped(job)
    plan = make_plan([spec for spec, _ in trainer.specs], 2)
    measured = trainer.evaluate(plan.scatter([np.ones(s.shape, "f") for s, _ in trainer.specs]))
    expected = trainer.model.evaluate(X, BITS, sample_weight=WEIGHTS, verbose=0, return_dict=True)
    assert measured == pytest.approx(expected) and set(measured) == {"loss", "mae", "root"}
    # The same from batches.
    job.heldout = lambda: [(X[:5], BITS[:5], WEIGHTS[:5]), (X[5:], BITS[5:], WEIGHTS[5:])]
    assert trainer.evaluate(plan.scatter([np.ones(s.shape, "f") for s, _ in trainer.specs])) == pytest.approx(
        expected, rel=1e-4
    )


def test_a_model_is_built_from_the_first_batch():
    def build():
        return keras.Sequential([layers.Dense(5, "relu"), layers.Dense(1)])

    trainer, result, _ = stepped(job_of(build, [(X, BITS.reshape(-1, 1))], loss="mse"))
    assert trainer.model.built and result.norm > 0
    with pytest.raises(
        JobError, match=r"the dataset of job Made is empty \(dataset\(0, 1, 3\) has no batch\)"
    ):
        stepped(job_of(build, [], loss="mse"))


def test_the_servers_run_the_optimizer_that_the_model_was_compiled_with():
    """Beginning to end: Adam with decay but for one layer, clipped; the weights are those of Keras alone."""
    batches = [(X[:6], BITS[:6]), (X[6:], BITS[6:])] * 4

    def build():
        model = one()
        optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.2, clipnorm=0.05)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        model.compile(optimizer, "mse", jit_compile=False)
        return model

    trainer = JobTrainer(job_of(build, batches), device="cpu", seed=3)
    wanted = requested_optimizer(trainer)
    with serving(overrides=["optimizer={name='from-job'}"]) as cluster:
        with connect_link(cluster.hosts, trainer.specs, optimizer=wanted) as session:
            trainer.attach(session.plan, session.dtypes)
            outcome = train(session, trainer, 1, lambda *_: None)
            final = session.plan.gather(session.pull_final())
    assert outcome.steps == 8
    _, moved = by_keras(build, batches, None, None)
    start = [value for _, value in trainer.specs]
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    start = [v.numpy() for v in build().trainable_variables]
    for found, before, way in zip(final, start, moved, strict=True):
        np.testing.assert_allclose(found, before - way, atol=2e-5)
