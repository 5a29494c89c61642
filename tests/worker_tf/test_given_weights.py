"""A job that begins with given weights: of a Keras file, or by name; exactly its own, or it does not begin."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

from pslab.launch.simulated import run_simulated
from pslab.replay.run_folder import prove, replay_of
from pslab.runs.folder import Run
from psserver import weights_file
from pswire.config.experiment import ExperimentError, parse_experiment
from psworker.job import JobError, load_job
from psworker.tensorflow import named_variables
from psworker.tensorflow.trainer import Trainer

pytestmark = [
    pytest.mark.tensorflow,
    # Keras writes its files so.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

DIGITS = "examples/digits.py:Digits"


def trainer(seed: int) -> Trainer:
    return Trainer(load_job(DIGITS, {"hidden": 8}), seed=seed)


def values(made: Trainer) -> dict[str, np.ndarray]:
    return {spec.name: array for spec, array in made.specs}


def file_of(folder: Path, name: str, seed: int = 5) -> Path:
    """A model of the job with other values, trained elsewhere."""
    path, other = folder / name, trainer(seed)
    if name.endswith(".keras"):
        other.model.compile(keras.optimizers.Adam(), "mse")
        other.model.save(path)
    else:
        save_file({name: array.numpy() for name, array in named_variables(other.model).items()}, path)
    return path


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}


@pytest.mark.parametrize("name", ["w.keras", "w.safetensors"])
def test_a_trainer_has_the_values_in_the_file(tmp_path: Path, name: str) -> None:
    path, expected, made = file_of(tmp_path, name), values(trainer(5)), trainer(1)
    assert not same(values(made), expected)
    made.begin_with(path)
    assert same(values(made), expected)


def _missing(found: dict[str, np.ndarray]) -> None:
    del found["dense_1/bias"]


def _more(found: dict[str, np.ndarray]) -> None:
    found["head/kernel"] = np.ones(3, np.float32)


def _shape(found: dict[str, np.ndarray]) -> None:
    found["dense/kernel"] = np.ones((64, 9), np.float32)


def _whole_numbers(found: dict[str, np.ndarray]) -> None:
    found["dense/bias"] = np.ones(8, np.int32)


def _nan(found: dict[str, np.ndarray]) -> None:
    found["dense/bias"][3] = np.nan


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_missing, "has no variable 'dense_1/bias'; it has 3: dense/bias, dense/kernel, dense_1/kernel"),
        (_more, "it has 'head/kernel', which the model has not"),
        (_shape, r"'dense/kernel': expected the shape \(64, 8\), got \(64, 9\)"),
        (_whole_numbers, "'dense/bias': expected floating numbers, got int32"),
        (_nan, "'dense/bias': expected finite numbers, got NaN or infinity"),
    ],
)
def test_another_models_weights_are_refused_and_change_nothing(tmp_path: Path, edit: Any, words: str) -> None:
    made = trainer(1)
    before = {name: array.copy() for name, array in values(made).items()}
    found = {name: array.copy() for name, array in before.items()}
    edit(found)
    save_file(found, tmp_path / "w.safetensors")
    with pytest.raises(JobError, match=rf"w.safetensors: does not hold this job's model: .*{words}"):
        made.begin_with(tmp_path / "w.safetensors")
    assert same(values(made), before)


@pytest.mark.parametrize("name", ["w.keras", "w.safetensors"])
def test_what_is_no_such_file(tmp_path: Path, name: str) -> None:
    made = trainer(1)
    with pytest.raises(JobError, match="expected a file with the initial weights, and there is none"):
        made.begin_with(tmp_path / name)
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(JobError, match=f"reading .*{name} raised "):
        made.begin_with(tmp_path / name)


def experiment(initial: str, **job: Any) -> dict[str, Any]:
    return {
        "run": {"versions": 1, "name": "test", "seed": 1},
        "optimizer": {"name": "sgd", "learning_rate": 1e-30},
        "job": {"module": DIGITS, "options": {"hidden": 8}, "initial": initial, **job},
    }


def test_a_run_begins_with_them_and_is_replayed(tmp_path: Path) -> None:
    """At a learning rate of nothing the run ends as it began."""
    path = file_of(tmp_path, "w.keras")
    done = run_simulated(parse_experiment(experiment(str(path))), out=tmp_path / "run", quiet=True)
    assert done.result.ok, done
    run = Run(done.folder)
    found, expected = weights_file.load(run.path / "weights.safetensors").arrays, values(trainer(5))
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[name], expected[name], rtol=0, atol=1e-25) for name in expected)
    assert run.experiment.job.initial == str(path)
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (experiment("w.h5"), "job.initial"),
        ({"job": {"script": "train.py", "initial": "w.keras"}}, "the script loads its model itself"),
    ],
)
def test_what_names_no_such_weights_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        parse_experiment(document)
