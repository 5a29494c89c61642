"""Training loops of one's own: a GradientTape, and a GAN with two optimizers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psworker.errors import JobOver, SessionError
from tests.service.serving import serving, wait_until

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
Y = X[:, :1] * 2.0 - X[:, 1:2]


@pytest.fixture(autouse=True)
def no_servers_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def build(*layers: Any) -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    return model


def tape(model: Any, k: int) -> tuple[float, list[Any]]:
    x, y = X[k * 8 : k * 8 + 8], Y[k * 8 : k * 8 + 8]
    with tf.GradientTape() as recorded:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    return float(loss), recorded.gradient(loss, model.trainable_variables)


def test_a_remote_optimizer_changes_nothing_else_of_a_loop() -> None:
    """With clipping, a rate that is set on the way, BatchNorm's state, and variables in another order."""

    def loop(model: Any, optimizer: Any) -> None:
        for k in range(6):
            if k == 3:
                optimizer.learning_rate = 0.01
            gradients, variables = tape(model, k)[1], model.trainable_variables
            if k % 2:
                optimizer.apply(gradients[::-1], variables[::-1])
            else:
                optimizer.apply_gradients(zip(gradients, variables, strict=True))

    plain, ours = (build(keras.layers.BatchNormalization()) for _ in range(2))
    loop(plain, keras.optimizers.SGD(0.05, clipnorm=1.0))
    with pk.RemoteOptimizer(ours, keras.optimizers.SGD(0.05, clipnorm=1.0)) as remote:
        loop(ours, remote)
        assert remote.fates == {"applied": 6}
        assert remote.version == 6 and float(remote.learning_rate) == pytest.approx(0.01)
        with pytest.raises(pk.RemoteError, match="a RemoteOptimizer is of one model"):
            remote.apply([None], ours.trainable_variables[:1])
        with pytest.raises(pk.RemoteError, match="within a tf.function"):
            tf.function(lambda: remote.apply([None]), autograph=False)()
    remote.close()
    for a, b in zip(plain.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-6)
    with pytest.raises(JobOver, match="the job is over at version 6"):
        remote.apply([None] * 4)


def test_a_remote_optimizer_that_gets_no_version_leaves_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has it who could close it, and others would wait for its contribution."""
    with serving(overrides=["optimizer={name='from-job'}"]) as cluster:
        monkeypatch.setattr(pk.RemoteOptimizer, "load", lambda remote: (remote.link.ready(), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            pk.RemoteOptimizer(build(), keras.optimizers.SGD(0.05), cluster.hosts)
        wait_until(lambda: [w.state for w in cluster.status().workers] == ["left"], "it to leave")


def test_a_gan_has_a_remote_for_each_optimizer() -> None:
    keras.utils.set_random_seed(5)
    generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(6)])
    critic = build(keras.layers.Dense(8, activation="tanh"))
    judge = keras.losses.BinaryCrossentropy(from_logits=True)
    before = [model.get_weights()[0].copy() for model in (generator, critic)]
    with (
        pk.RemoteOptimizer(generator, keras.optimizers.Adam(0.01)) as fakes,
        pk.RemoteOptimizer(critic, keras.optimizers.RMSprop(0.02)) as judges,
    ):
        for _ in range(3):
            noise = tf.random.normal((8, 2))
            with tf.GradientTape(persistent=True) as recorded:
                made = generator(noise)
                real, fake = critic(X[:8]), critic(made)
                lost = judge(tf.ones_like(real), real) + judge(tf.zeros_like(fake), fake)
                fooled = judge(tf.ones_like(fake), fake)
            assert judges.apply(recorded.gradient(lost, critic.trainable_variables), loss=float(lost))
            assert fakes.apply(recorded.gradient(fooled, generator.trainable_variables), loss=float(fooled))
        assert (fakes.version, judges.version) == (3, 3)
    for model, old in zip((generator, critic), before, strict=True):
        assert np.abs(model.get_weights()[0] - old).max() > 0


def test_calls_out_of_turn_and_gradients_that_do_not_count() -> None:
    model = build()
    with pk.RemoteOptimizer(model, "sgd") as remote:
        assert not remote.apply([np.full((6, 1), np.nan, np.float32), None])
        assert remote.version == remote.load() == 0
        with pytest.raises(pk.RemoteError, match="expected 2 gradients"):
            remote.apply([None])
        assert remote.apply([None, np.ones(1, np.float32)])
        assert remote.version == 1


def test_a_loop_whose_gradients_are_never_finite_ends_with_a_sentence() -> None:
    """One that is finite between begins the count anew."""
    good, bad = [np.ones((6, 1), np.float32), None], [np.full((6, 1), np.nan, np.float32), None]
    with pk.RemoteOptimizer(build(), "sgd") as remote:
        for gradients in [*[bad] * 9, good, *[bad] * 9]:
            assert remote.apply(gradients) == (gradients is good)
        assert remote.version == 1
        with pytest.raises(SessionError, match="10 batches in a row gave no finite gradient"):
            remote.apply(bad)
        assert remote.load() == 1  # nothing of them came into the model


o = keras.optimizers


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: o.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps is what distribute"),
        (lambda: o.SGD(use_ema=True), "use_ema is what distribute"),
        (lambda: o.LossScaleOptimizer(o.SGD()), "unscale the gradients"),
        (lambda: o.Muon(), "no Muon"),
    ],
)
def test_what_a_loop_does_itself_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(pk.TranslationError, match=words):
        pk.RemoteOptimizer(build(), make())
