"""What Keras can do besides: each on servers in this process, against plain `fit` where there is something to equal."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psworker.errors import Refused
from tests.keras.in_process import servers
from tests.probes import leave_fit
from tests.service.serving import wait_until

pytestmark = [
    pytest.mark.usefixtures("jobs_end"),
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Could not reach RemoteMonitor:UserWarning"),
]

pk = pytest.importorskip("psworker.keras")
keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from tests.keras.steps import assert_same, compiled  # noqa: E402

BATCH = 16
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, len(X))
FIT: dict[str, Any] = {"x": X, "y": Y, "batch_size": BATCH, "verbose": 0}


def build(optimizer: Any = "adam", *layers: Any, **more: Any) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((8,)), *layers, dense(16, activation="relu"), dense(4)])
    return compiled(model, optimizer, **{"run_eagerly": True, **more})


def both(
    make: Callable[[], Any], script: Callable[[Any], Any], count: int = 1, **told: Any
) -> tuple[Any, Any, Any, Any]:
    """Model and what `script` returned, plain; the same on `count` servers, where `distribute` is told more."""
    keras.utils.set_random_seed(3)
    plain = make()
    keras.utils.set_random_seed(9)
    expected = script(plain)
    keras.utils.set_random_seed(3)
    ours = make()
    with servers(count) as hosts, pk.distribute(ours, hosts, **{"stay": True, **told}) as job:
        keras.utils.set_random_seed(9)
        got = script(ours)
        assert job.version > 0
    return plain, expected, ours, got


def test_a_rule_on_whole_variables_is_refused_where_servers_would_split_one() -> None:
    model = build(keras.optimizers.Lamb(0.01))
    with servers(2) as hosts, pytest.raises(Refused, match=r"'lamb' scales each step .* expected one server"):
        pk.distribute(model, hosts=hosts).session.close()


def several_outputs() -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    entry = keras.Input((8,))
    hidden = keras.layers.Dense(8, activation="tanh")(entry)
    kind, size = keras.layers.Dense(4, name="kind")(hidden), keras.layers.Dense(1, name="size")(hidden)
    model = keras.Model(entry, {"kind": kind, "size": size})
    return compiled(
        model,
        keras.optimizers.SGD(0.1),
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"]},
        weighted_metrics={"size": ["mae"]},
    )


def test_validation_split_frequency_steps_and_batch_size() -> None:
    def script(model: Any) -> Any:
        split = model.fit(**FIT, validation_split=0.25, epochs=2, validation_freq=2).history
        held = {"validation_data": (X[:48], Y[:48]), "validation_batch_size": 8, "validation_steps": 3}
        return split, model.fit(**FIT, **held).history

    plain, expected, ours, got = both(build, script)
    assert got == expected and len(got[0]["val_loss"]) == 1
    assert_same(plain, ours)


def test_train_on_batch_is_a_batch_of_fit() -> None:
    def script(model: Any) -> Any:
        return [
            model.train_on_batch(X[k : k + BATCH], Y[k : k + BATCH], return_dict=True)["loss"]
            for k in range(0, len(X), BATCH)
        ]

    plain, expected, ours, got = both(build, script)
    assert [float(loss) for loss in got] == [float(loss) for loss in expected]
    assert_same(plain, ours)


def test_what_a_step_draws_follows_from_numbers() -> None:
    from psworker.backends.keras.variables import collect, draw

    states = []
    for of in ([1, 2], [1, 3], [1, 2]):
        found = collect(build("sgd", keras.layers.Dropout(0.5, seed=7)))
        draw(found.seeds, of)
        states.append(found.seeds[0].numpy().tolist())
    assert states[0] == states[2] != states[1]


def leaves(folder: Path) -> list[dict[str, Any]]:
    """Entries of that kind in the log so far, of whole lines."""
    lines = (folder / "decisions.jsonl").read_text().split("\n")[:-1]
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "leave"]


def test_labels_out_of_range_end_their_worker_and_nobody_waits_for_it(tmp_path: Path) -> None:
    model = build()
    wrong = np.where(np.arange(len(Y)) == 40, 9, Y)
    with servers(out=tmp_path / "run") as hosts, pk.distribute(model, hosts):
        with pytest.raises(tf.errors.InvalidArgumentError, match="label value of 9 .* valid range"):
            model.fit(X, wrong, batch_size=BATCH, shuffle=False, verbose=0)
        # The servers hear of it from the session's stream.
        (left,) = wait_until(lambda: leaves(tmp_path / "run"), "the worker to leave")
    assert left["reason"] == "InvalidArgumentError in fit"


def test_other_callbacks_see_what_they_see_in_plain_fit() -> None:
    def script(model: Any) -> Any:
        told: list[Any] = []
        each = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: told.append(("epoch", epoch)),
            on_train_batch_begin=lambda batch, logs: told.append(("batch", batch)),
            on_epoch_end=lambda epoch, logs: told.append(sorted(logs)),
            on_train_end=lambda logs: told.append("end"),
        )
        # Where nobody listens it says so, as in plain fit, and training goes on.
        remote = keras.callbacks.RemoteMonitor(root="http://127.0.0.1:1")
        history = keras.callbacks.History()
        model.fit(**FIT, epochs=2, callbacks=[each, remote, history])
        return told, history.history

    _, expected, _, got = both(build, script)
    assert got == expected


def test_a_callback_list_is_as_it_was_for_another_fit(tmp_path: Path) -> None:
    model, epochs = build("sgd"), []
    each = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    writes = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)
    listed = keras.callbacks.CallbackList([each, writes], add_history=True, model=model)
    before = list(listed.callbacks)
    with pk.distribute(model) as job:
        for fit in (1, 2):
            model.fit(**FIT, callbacks=listed)
            assert [id(found) for found in listed.callbacks] == [id(found) for found in before]
            assert job.version == fit * len(X) // BATCH and epochs == [0] * fit
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3


def test_weights_set_between_session_and_the_first_batch_are_refused() -> None:
    """Joining sends the weights of that moment; what is set then would be overwritten by version 0."""
    model = build()
    with servers() as hosts, pk.distribute(model, hosts) as job:
        assert job.session.rank == 0
        model.set_weights([np.full_like(weights, 7.0) for weights in model.get_weights()])
        with pytest.raises(pk.FitError, match=r"'dense/kernel' were set after the job was joined"):
            model.fit(**FIT)
        assert job.version == 0
        np.testing.assert_array_equal(model.get_weights()[0], 7.0)


def backup(folder: Path) -> Any:
    """A backup of epoch 1, whose weights are 0.25; the callback that finds it."""
    model = build(keras.optimizers.SGD(1e-6))
    model.set_weights([np.full_like(weights, 0.25) for weights in model.get_weights()])
    folder.mkdir()
    model.save_weights(folder / "latest.weights.h5")
    (folder / "training_metadata.json").write_text('{"epoch": 1, "batch": 0}')
    return keras.callbacks.BackupAndRestore(str(folder))


def test_a_backup_is_restored_before_the_only_worker_of_a_cluster_joins(tmp_path: Path) -> None:
    """Its number is not said, so that a callback that writes files must join to know whether it acts."""
    saves = backup(tmp_path / "backup")
    model = build(keras.optimizers.SGD(1e-6))
    writes = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    with servers() as hosts, pk.distribute(model, hosts):
        assert model.fit(**FIT, epochs=3, callbacks=[writes, saves]).epoch == [1, 2]
    for weights in model.get_weights():
        np.testing.assert_allclose(weights, 0.25, atol=1e-5)


@pytest.mark.parametrize(("workers", "early"), [(2, False), (1, True)], ids=["two workers", "joined before"])
def test_a_backup_that_servers_would_not_take_up_is_refused(
    tmp_path: Path, workers: int, early: bool
) -> None:
    """With two workers: in the one that has it, once both are there."""
    saves, model = backup(tmp_path / "backup"), build(keras.optimizers.SGD(1e-6))
    words = "after the job was joined" if early else "in a job of 2 workers"
    with (
        servers(workers=workers) as hosts,
        pk.distribute(model, hosts) as job,
        ThreadPoolExecutor(1) as pool,
    ):
        if early:
            assert job.session.size == 1
        else:
            other = pk.distribute(build(keras.optimizers.SGD(1e-6)), hosts, task_index=1).session._link
            pool.submit(other.ready)
        with pytest.raises(pk.FitError, match=f"cannot go on from it {words}.*initial_epoch"):
            model.fit(**FIT, epochs=3, callbacks=[saves])
        assert job.version == 0


def test_the_logged_loss_is_the_mean_over_accumulated_batches(tmp_path: Path) -> None:
    model = build(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    expected = model.evaluate(X[: 2 * BATCH], Y[: 2 * BATCH], verbose=0)[0]
    with servers(out=tmp_path / "run") as hosts, pk.distribute(model, hosts):
        model.fit(X[: 2 * BATCH], Y[: 2 * BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    lines = (tmp_path / "run" / "decisions.jsonl").read_text().splitlines()
    losses = [entry["loss"] for entry in map(json.loads, lines) if entry["kind"] == "commit"]
    assert losses == [pytest.approx(expected, rel=1e-5)]


def test_a_worker_with_another_layout_of_images_is_refused() -> None:
    """The kernels have the same shapes."""

    def images(layout: str) -> Any:
        layers = [
            keras.layers.Conv2D(3, 2, data_format=layout),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
        shape = (5, 5, 1) if layout == "channels_last" else (1, 5, 5)
        return compiled(keras.Sequential([keras.Input(shape), *layers]))

    first, other = images("channels_last"), images("channels_first")
    with servers(workers=2) as hosts, pk.distribute(first, hosts, task_index=0) as job:
        assert job.session.rank == 0
        with pytest.raises(Refused, match=r"conv2d\[channels_first\]/kernel"):
            pk.distribute(other, hosts, task_index=1).session.close()
        # Nobody else comes, for whom its end would wait.
        leave_fit(job, "the test ends")


@pytest.mark.parametrize("said", [{"policy": "async"}, {"seed": 3}, {"out": "somewhere"}])
def test_what_is_said_of_a_server_of_ones_own_is_refused_where_servers_run(
    said: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(said))}=.* servers run already, at h:7070"):
        pk.distribute(build(), "h:7070", **said)
    monkeypatch.setenv("PS_HOSTS", "h:7070")
    with pytest.raises(ValueError, match="servers run already"):
        pk.RemoteOptimizer(build(), "sgd", **said)


def test_a_second_optimizer_is_refused_by_name() -> None:
    for held in (keras.optimizers.SGD(), [keras.optimizers.SGD()], {"g": keras.optimizers.SGD()}):
        model = build()
        model.g_optimizer = held
        with pytest.raises(pk.FitError, match=r"model\.g_optimizer holds another optimizer.*RemoteOptimizer"):
            pk.distribute(model)


def test_swapping_averages_is_refused() -> None:
    model = build(keras.optimizers.SGD(0.1, use_ema=True))
    with pk.distribute(model), pytest.raises(pk.FitError, match="use_ema=True alone"):
        model.fit(**FIT, callbacks=[keras.callbacks.SwapEMAWeights()])


class Assigning(keras.Model):  # type: ignore[misc]
    """Clips its weights in its step, as in a WGAN; `how`: at once, or in a function."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.dense, self.how = keras.layers.Dense(1), how

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def clip(self) -> Any:
        # A graph is refused even where its first batch changes nothing.
        most = 0.01 if self.how == "eagerly" else 100.0
        return self.dense.kernel.value.assign(tf.clip_by_value(self.dense.kernel.value, -most, most))

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - 1.0) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        if self.how == "function":
            tf.function(lambda: [self.clip()] and 0)()
        else:
            self.clip()
        return {"loss": loss}


@pytest.mark.parametrize("how", ["function", "eagerly"])
def test_a_train_step_that_assigns_weights_is_refused(how: str) -> None:
    """The next version would overwrite them."""
    keras.utils.clear_session()
    model = Assigning(how)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", run_eagerly=how == "eagerly")
    with servers() as hosts, pk.distribute(model, hosts) as job:
        with pytest.raises(Exception, match="assigns a value to .*kernel"):
            model.fit(**FIT)
        assert job.version == 0


class Peak(keras.metrics.Metric):  # type: ignore[misc]
    """A maximum, which does not say that it is none of Keras' sums."""

    def __init__(self) -> None:
        super().__init__(name="peak")
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, true: Any, predicted: Any, sample_weight: Any = None) -> None:
        ops = keras.ops
        self.most.assign(ops.maximum(self.most, ops.max(ops.cast(true, "float32"))))

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(self.most)


def test_a_metric_that_is_no_sum_stays_each_workers_own(caplog: pytest.LogCaptureFixture) -> None:
    """Two workers, whose labels are of different sizes."""
    labels = np.where(np.arange(len(X)) % 2, 3, 1)
    models = [build("sgd", metrics=[Peak(), "accuracy"], run_eagerly=True) for _ in range(2)]

    def fit(index: int) -> Any:
        own = slice(index, None, 2)
        return models[index].fit(X[own], labels[own], batch_size=BATCH, verbose=0).history

    with servers(workers=2) as hosts, ThreadPoolExecutor(2) as pool:
        jobs = [pk.distribute(model, hosts, task_index=index) for index, model in enumerate(models)]
        found = list(pool.map(fit, range(2)))
        for job in jobs:
            job.close()
    assert [history["peak"] for history in found] == [[1.0], [3.0]]
    assert found[0]["accuracy"] == found[1]["accuracy"] and found[0]["loss"] == found[1]["loss"]
    assert [getattr(record, "event", "") for record in caplog.records].count("metric_own") == 2


# The optimizer's state comes back


def losses(model: Any, epochs: int) -> list[float]:
    found: list[float] = []
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: found.append(logs["loss"]))
    model.run_eagerly = True  # also where it was loaded
    model.fit(**FIT, epochs=epochs, shuffle=False, callbacks=[each])
    return found


def assert_same_state(one: Any, other: Any) -> None:
    for a, b in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-4, atol=1e-6, err_msg=a.path)


def test_weights_that_a_callback_sets_within_an_epoch_are_refused() -> None:
    """Before a gradient of them is computed."""
    model, steps = build(), []

    def act(batch: int, logs: Any) -> None:
        steps.append(batch)
        if batch == 2:
            model.layers[0].set_weights([weights + 0.5 for weights in model.layers[0].get_weights()])

    with servers() as hosts, pk.distribute(model, hosts) as job:
        with pytest.raises(pk.FitError, match="changed by something"):
            model.fit(**FIT, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=act)])
        assert max(steps) == 2 and job.fates["applied"] <= 3
