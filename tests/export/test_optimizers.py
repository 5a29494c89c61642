"""What a `.keras` file has of the run's optimizer: plain Keras goes on from it as if it had trained alone."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pslab.runs.folder import Run
from psserver.checkpoint import Store
from psserver.optimizers import registry
from tests.repetitions import usually
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

keras = pytest.importorskip("keras")


from psworker.keras.translate import keras_optimizer, translate  # noqa: E402
from tests.export.regression import BATCHES, OwnOptimizer, dataset, model  # noqa: E402

EPOCHS, MORE = 2, 10
RUN = {"name": "test", "checkpoint_every": "7 versions", "keep": 99}
ONE = {"servers": 1, "workers": 1}
SGD = keras.optimizers.SGD
OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({}, lambda: SGD(0.02)),
    "momentum": ({"momentum": 0.8}, lambda: SGD(0.02, momentum=0.8)),
    "adam": ({}, lambda: keras.optimizers.Adam(0.02)),
    "adamw": ({"weight_decay": 0.01}, lambda: keras.optimizers.AdamW(0.02, weight_decay=0.01)),
    "rmsprop": ({}, lambda: keras.optimizers.RMSprop(0.02)),
}


class Losses(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Of this batch alone: Keras averages over an epoch.
        self.found.append(float(logs["loss"]))
        self.model.reset_metrics()


def losses(trained: Any, steps: int) -> list[float]:
    """Of the next batches."""
    seen = Losses()
    trained.fit(dataset(), epochs=steps // BATCHES, shuffle=False, verbose=0, callbacks=[seen])
    return seen.found


def trained(folder: Path, optimizer: dict[str, Any], job: str = "Regression", **more: Any) -> Run:
    sections = {"run": RUN, "cluster": ONE, "simulation": {"problem": "job", "compute": "constant(1)"}} | more
    module = {"module": f"tests/export/regression.py:{job}", "epochs": EPOCHS}
    return simulate(folder, "sync", optimizer=optimizer, job=module, **sections)


def export(source: Path, path: Path, *options: object) -> str:
    done = ps_lab("export", source, "--to", path, *options)
    assert done.code == 0, done
    return done.out


def assert_goes_on(path: Path, optimizer: Any, steps: int = EPOCHS * BATCHES) -> None:
    """As a model that plain Keras has trained for so many steps."""
    alone = model()
    alone.compile(optimizer, loss="mse", run_eagerly=True)
    losses(alone, steps)
    loaded = keras.models.load_model(path)
    loaded.run_eagerly = True
    assert type(loaded.optimizer) is type(optimizer) and int(loaded.optimizer.iterations) == steps
    assert losses(loaded, MORE) == pytest.approx(losses(alone, MORE), abs=1e-5)


@pytest.mark.parametrize("name", usually(["adamw"], soak=list(OPTIMIZERS)))
def test_plain_keras_goes_on_from_the_last_version(tmp_path: Path, name: str) -> None:
    knobs, make = OPTIMIZERS[name]
    run = trained(tmp_path / "run", {"name": name, "learning_rate": 0.02, **knobs})
    assert "with the optimizer's state\n" in export(run.path, tmp_path / "last.keras")
    assert_goes_on(tmp_path / "last.keras", make())


def test_of_a_checkpoint_of_a_version_and_of_a_job_that_names_its_optimizer(tmp_path: Path) -> None:
    """Several servers and workers; the checkpoint and the log, executed again, say the same."""
    more: dict[str, Any] = {"cluster": {"servers": 2, "workers": 2}}
    optimizer = {"name": "adamw", "learning_rate": 0.02, "weight_decay": 0.004, "clipvalue": 0.5}
    run = trained(tmp_path / "run", optimizer, "OwnOptimizer", **more)
    store = Store(run.path / "checkpoints")
    of_seven = store.root / next(each for each in store.names() if store.manifest(each).version == 7)
    for name, origin in (("saved", "read from checkpoint"), ("again", "computed again")):
        said = export(run.path, tmp_path / f"{name}.keras", "--version", 7)
        assert "with the optimizer's state\n" in said and origin in said
        shutil.rmtree(of_seven, ignore_errors=True)
    one, other = (keras.models.load_model(tmp_path / f"{name}.keras") for name in ("saved", "again"))
    assert one.optimizer.clipvalue == OwnOptimizer.optimizer.clipvalue
    for optimizer in (one.optimizer, other.optimizer):
        assert int(optimizer.iterations) == 7 and optimizer.variables[2].numpy().any()
    for first, second in zip(one.optimizer.variables, other.optimizer.variables, strict=True):
        assert (first.numpy() == second.numpy()).all(), first.path
    assert losses(one, MORE) == losses(other, MORE)


@pytest.mark.parametrize(
    ("optimizer", "more", "name", "told"),
    [
        (
            {"name": "adam"},
            {"run": {"checkpoint_every": ""}},
            "model.keras",
            "which begins anew: a checkpoint has it",
        ),
        ({"name": "delayed-nesterov"}, {}, "model.keras", "Keras has no delayed-nesterov"),
        ({"name": "adam"}, {}, "model", "for which the format has no place"),
    ],
    ids=["no checkpoint", "not in Keras", "SavedModel"],
)
def test_where_there_is_none_it_is_said(
    tmp_path: Path, optimizer: dict[str, Any], more: dict[str, Any], name: str, told: str
) -> None:
    run = trained(tmp_path / "run", optimizer, **more)
    said = export(run.path, tmp_path / name)
    assert "without the optimizer's state" in said and told in said
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["adamw", "cosine"])
def test_without_a_checkpoint_the_model_has_the_runs_optimizer(name: str, tmp_path: Path) -> None:
    cosine = {"schedule": "cosine", "initial_learning_rate": 0.03, "decay_steps": 90}
    given = (
        {"name": "adam", "learning_rate": cosine}
        if name == "cosine"
        else {"name": name, "learning_rate": 0.03}
    )
    run = trained(tmp_path / "run", given, run={"checkpoint_every": ""})
    said = export(run.path, tmp_path / "model.keras")
    assert f"compiled with the run's {given['name']}, without the optimizer's state" in said
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert registry.build(translate(loaded.optimizer)).config == registry.build(given).config
    assert int(loaded.optimizer.iterations) == (EPOCHS * BATCHES if name == "cosine" else 0)


@pytest.mark.parametrize("name", registry.names())
def test_each_optimizer_of_the_servers_that_keras_has_is_found(name: str) -> None:
    """With all its knobs: translated back it is what it was."""
    schedule = {"schedule": "cosine", "initial_learning_rate": 0.1, "decay_steps": 30}
    for rate in (0.25, registry.build({"name": "sgd", "learning_rate": schedule}).config["learning_rate"]):
        config = registry.build({"name": name, "learning_rate": rate}).config
        made = keras_optimizer(config)
        assert (made is None) == (name == "delayed-nesterov")
        if made is not None:
            assert registry.build(translate(made)).config == config
