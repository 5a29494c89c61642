"""`fit` on an embedded server is plain `fit`: same weights, same history, to the bit where Keras' own graph permits."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lab.logs import verify
from tests.probes import distributed_models
from tests.promises import promise
from tests.repetitions import SOAK, usually

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # Between Keras and numpy, when a rate is read or a model saved.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from tests.keras.steps import assert_same, compiled  # noqa: E402

BATCH = 16
STEPS = 4
X = np.random.default_rng(0).normal(size=(STEPS * BATCH, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, STEPS * BATCH)


@pytest.fixture(autouse=True)
def no_servers_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def build(optimizer: Any = "adam", *layers: Any, **more: Any) -> Any:
    """Eager, unless said otherwise: TensorFlow would compile for most of a test's time."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), *layers, keras.layers.Dense(4)]
    )
    return compiled(model, optimizer, **{"run_eagerly": True, **more})


Script = Callable[[Any], Any]


def both(make: Callable[[], Any], script: Script, **told: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """(model, what `script` returned) after plain training, and after the same on a server that is `told` more."""
    results = []
    for distributed in (False, True):
        # Layers that `make` gives to `build` draw their seeds before `build` sets its own.
        keras.utils.set_random_seed(3)
        model = make()
        job = pk.distribute(model, **told) if distributed else None
        keras.utils.set_random_seed(9)
        results.append((model, script(model)))
        if job is not None:
            assert job.fates.get("applied", 0) > 0
            job.close()
    return results[0], results[1]


def fits(model: Any) -> Any:
    """Two fits with validation and callbacks, an evaluation and a prediction between."""
    losses: list[float] = []
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    held = (X[:32], Y[:32])
    first = model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, validation_data=held, callbacks=[each])
    between = model.evaluate(*held, verbose=0), model.predict(X[:4], verbose=0).tolist()
    weights = np.linspace(0.5, 1.5, len(X))
    second = model.fit(
        *(X, Y),
        batch_size=BATCH,
        epochs=4,
        initial_epoch=2,
        verbose=0,
        sample_weight=weights,
        steps_per_epoch=2,
    )
    return first.history, between, second.history, losses


def trains(model: Any) -> Any:
    """One fit: TensorFlow traces no other graph."""
    return model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0).history


def validates(model: Any) -> Any:
    """Two graphs."""
    return model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, validation_data=(X, Y)).history


@promise("With one worker under sync, fit equals plain fit to the bit.")
@pytest.mark.parametrize(
    ("make", "script"),
    [
        # A layer that does something else in an evaluation.
        (lambda: build("adam", keras.layers.Dropout(0.3), run_eagerly=False), validates),
        (lambda: build("adam", keras.layers.Dropout(0.3)), fits),
        pytest.param(
            *(lambda: build(keras.optimizers.Lion(0.01, clipvalue=0.01)), trains), marks=pytest.mark.nightly
        ),
    ],
    ids=["compiled", "dropout", "clipvalue"],
)
def test_fit_equals_plain_fit_to_the_bit(make: Callable[[], Any], script: Script) -> None:
    (plain, expected), (ours, got) = both(make, fits if SOAK else script)
    assert_same(plain, ours)
    assert got == expected


def test_learning_rates_that_are_set_reach_the_servers(tmp_path: Path) -> None:
    """By two callbacks, before the job, and between two fits; to the bit, and as entries of the log."""

    def script(model: Any) -> Any:
        halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
        plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=10.0)
        model.optimizer.learning_rate = 0.03
        told = {"x": X, "y": Y, "batch_size": len(X), "verbose": 0}
        first = model.fit(**told, epochs=3, callbacks=[halved])
        second = model.fit(**told, epochs=4, callbacks=[plateau])
        model.optimizer.learning_rate = 0.07
        third = model.fit(**told)
        return first.history, second.history, third.history

    (plain, expected), (ours, got) = both(build, script, out=tmp_path / "run")
    assert_same(plain, ours)
    assert got == expected
    log = [json.loads(line) for line in (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()]
    (model,) = (entry for entry in log if entry["kind"] == "model")
    assert model["optimizer"]["learning_rate"] == 0.03
    rates = [entry["learning_rate"] for entry in log if entry["kind"] == "rate"]
    assert rates == pytest.approx([0.015, 0.0075, 0.00225, 0.000675, 0.07])
    assert verify(log).ok


@promise("fit takes any data that Keras takes.")
@pytest.mark.parametrize("source", usually(["generator"], soak=["pydataset", "dataset", "infinite"]))
def test_data_may_be_anything_that_keras_takes(source: str) -> None:
    class Sequence(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            part = slice(index * BATCH, (index + 1) * BATCH)
            return X[part], Y[part]

    def script(model: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        data: Any = {"dataset": dataset, "infinite": dataset.repeat(), "pydataset": Sequence()}.get(source)
        if source == "generator":
            data = ((X[i : i + BATCH], Y[i : i + BATCH]) for i in list(range(0, len(X), BATCH)) * 2)
        steps = STEPS if source in ("infinite", "generator") else None
        weights = None if source == "generator" else {0: 2.0, 1: 1.0, 2: 1.0, 3: 0.5}
        more = {"steps_per_epoch": steps, "class_weight": weights, "shuffle": source == "pydataset"}
        return model.fit(data, epochs=2, verbose=0, **more).history

    (plain, expected), (ours, got) = both(build, script)
    assert got == expected
    assert_same(plain, ours)


def test_what_servers_cannot_do_is_refused_and_nothing_is_ignored() -> None:
    model = build(keras.optimizers.SGD(0.1))
    with pk.distribute(model):
        model.fit(X, Y, batch_size=BATCH, verbose=0)
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        with pytest.raises(pk.FitError, match="changed by something else than training"):
            model.fit(X, Y, batch_size=BATCH, verbose=0)
    with pytest.raises(pk.FitError, match="call model.compile"):
        pk.distribute(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    frozen = build()
    with pk.distribute(frozen):
        frozen.fit(X, Y, batch_size=BATCH, verbose=0)
        frozen.layers[0].trainable = False
        with pytest.raises(pk.FitError, match="frozen or thawed"):
            frozen.fit(X, Y, batch_size=BATCH, verbose=0)


def test_batches_without_a_finite_gradient_are_skipped_and_end_the_run() -> None:
    model = build(keras.optimizers.SGD(0.1))
    bad = X.copy()
    bad[BATCH : 2 * BATCH] = np.nan
    with pk.distribute(model) as job:
        model.fit(bad, Y, batch_size=BATCH, shuffle=False, verbose=0)
        assert job.version == STEPS - 1
        assert all(np.isfinite(w).all() for w in model.get_weights())
        with pytest.raises(Exception, match="10 batches in a row"):
            model.fit(X * np.nan, Y, batch_size=BATCH, epochs=3, verbose=0)


def custom(body: Callable[[Any, Any, Any], None]) -> Any:
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - 1.0) ** 2)
            body(self, tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    model = Own()
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    return model


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda model, grads, variables: None, "applied no gradients"),
        (
            lambda model, grads, variables: [model.optimizer.apply(grads, variables) for _ in range(2)],
            "twice",
        ),
    ],
)
def test_a_train_step_that_is_no_single_update_is_refused(body: Any, words: str) -> None:
    model = custom(body)
    with pk.distribute(model), pytest.raises(Exception, match=words):
        model.fit(X, Y, batch_size=BATCH, verbose=0)


def test_mixed_precision_trains() -> None:
    # Too large a scale: the first gradients overflow float16.
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**24)
    keras.utils.clear_session()
    layers = [keras.Input((8,)), *(keras.layers.Dense(n, dtype="mixed_float16") for n in (16, 4))]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(scaled, loss, run_eagerly=True)
    with pk.distribute(model) as job:
        history = model.fit(X, Y, batch_size=BATCH, epochs=8, verbose=0)
        assert 0 < job.version < 8 * STEPS
    assert history.history["loss"][-1] < history.history["loss"][0]


# tests/exchange takes every codec to an update.
@promise("Fit and JAX workers take codecs (PyTorch: the same session, in scripts/soak frameworks).")
@pytest.mark.parametrize("wire_dtype", usually(["int4/bfloat16"], soak=["bfloat16", "int8"]))
def test_rounded_payloads_train(wire_dtype: str) -> None:
    keras.utils.clear_session()
    layers = [keras.Input((8,)), *(keras.layers.Dense(n, dtype="mixed_bfloat16") for n in (40, 4))]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
    with pk.distribute(model, wire_dtype=wire_dtype) as job:
        history = model.fit(X, Y, batch_size=BATCH, epochs=4, verbose=0)
        assert job.version == 4 * STEPS
    assert history.history["loss"][-1] < history.history["loss"][0]


def test_the_progress_bar_tells_of_versions(capsys: pytest.CaptureFixture[str]) -> None:
    model = build()
    with pk.distribute(model):
        model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=1)
        shown = capsys.readouterr().out
    last = shown.splitlines()[-1]
    assert f"version: {2 * STEPS}" in last and "staleness: 0" in last and "dropped: 0" in last


def test_backup_and_restore_goes_on_in_the_same_epoch(tmp_path: Path) -> None:
    class Crash(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise RuntimeError("the machine goes down")

    def fit(*more: Any) -> Any:
        model = build(keras.optimizers.SGD(0.1))
        with pk.distribute(model) as job:
            saving = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
            history = model.fit(X, Y, batch_size=BATCH, epochs=4, verbose=0, callbacks=[saving, *more])
            return history.epoch, job.version, model

    with pytest.raises(RuntimeError, match="goes down"):
        fit(Crash())
    epochs, version, _ = fit()
    assert epochs == [2, 3] and version == 2 * STEPS


@pytest.fixture(autouse=True)
def sessions_end() -> Iterator[None]:
    yield
    for job in distributed_models():
        job.close()
