"""A job that begins with given weights: of a Keras file, or by name; exactly its own, or it does not begin."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.replay.run_folder import prove, replay_of
from pslab.runs.folder import Run
from psserver import weights_file
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from psworker.cli import main
from psworker.job import JobError, load_job
from psworker.keras import named_variables
from psworker.keras.jobs.trainer import JobTrainer
from tests.replay.command import ps_lab
from tests.service.serving import serving

pytestmark = [
    pytest.mark.tensorflow,
    # Keras writes its files so.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

DIGITS = "examples/digits.py:Digits"


def trainer(seed: int) -> JobTrainer:
    return JobTrainer(load_job(DIGITS, {"hidden": 8}), seed=seed)


def values(made: JobTrainer) -> dict[str, np.ndarray]:
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


def check_begun_with(run: Run, expected: dict[str, np.ndarray]) -> None:
    found = weights_file.load(run.path / "weights.safetensors").arrays
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[name], expected[name], rtol=0, atol=1e-25) for name in expected)


def test_a_run_begins_with_them_and_is_replayed(tmp_path: Path) -> None:
    """At a learning rate of nothing the run ends as it began."""
    path = file_of(tmp_path, "w.keras")
    done = run_simulated(Experiment.parse(experiment(str(path))), out=tmp_path / "run", quiet=True)
    assert done.result.ok, done
    run = Run(done.folder)
    check_begun_with(run, values(trainer(5)))
    assert run.experiment.job.initial == str(path)
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds


# As typed, of the job above: it ends as it began, too.
COMMAND = ("--job", DIGITS, "--option", "hidden=8", "--initial")
IDLE = ("optimizer.learning_rate=1e-30", "run.versions=1")


def test_a_ps_worker_brings_them(tmp_path: Path) -> None:
    path, out = file_of(tmp_path, "w.keras"), tmp_path / "run"
    with serving(2, out=out, overrides=IDLE) as cluster:
        said = CliRunner().invoke(main, ["--ps-hosts", cluster.hosts, *COMMAND, str(path)])
        assert said.exit_code == ExitCode.OK, said.output
        assert cluster.servers[0].ended() == ExitCode.OK
    check_begun_with(Run(out), values(trainer(5)))


def test_a_ps_worker_with_another_models_file_does_not_join(tmp_path: Path) -> None:
    edited = {name: array.copy() for name, array in values(trainer(1)).items()}
    _shape(edited)
    path = tmp_path / "w.safetensors"
    save_file(edited, path)
    with serving() as cluster:
        before = cluster.picture()
        said = CliRunner().invoke(main, ["--ps-hosts", cluster.hosts, *COMMAND, str(path)])
        assert cluster.picture() == before
    assert said.exit_code == ExitCode.JOB_FAILED
    assert f"{path}: does not hold this job's model: " in said.output
    assert "'dense/kernel': expected the shape (64, 8), got (64, 9)" in said.output


def test_a_ps_lab_run_begins_with_them(tmp_path: Path) -> None:
    path, file = file_of(tmp_path, "w.safetensors"), tmp_path / "e.toml"
    file.write_text(Experiment.parse(experiment("")).to_toml())
    options = ("--engine", "simulated", "--quiet", "--out", tmp_path / "run", "--initial", path)
    said = ps_lab("run", file, *options)
    assert said.code == 0, said
    run = Run(tmp_path / "run")
    assert run.experiment.job.initial == str(path)
    check_begun_with(run, values(trainer(5)))


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ("w.h5", '--initial: expected a file .keras or .safetensors, got the string "w.h5"'),
        ("gone.keras", "job.initial: there is no file gone.keras"),
    ],
)
def test_what_is_no_such_file_begins_no_run(tmp_path: Path, initial: str, words: str) -> None:
    file = tmp_path / "e.toml"
    file.write_text(Experiment.parse(experiment("")).to_toml())
    said = ps_lab("run", file, "--out", tmp_path / "run", "--initial", initial)
    assert said.code == ExitCode.USAGE and words in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (experiment("w.h5"), "job.initial: expected a file .keras or .safetensors"),
        ({"job": {"script": "train.py", "initial": "w.keras"}}, "the script loads its model itself"),
    ],
)
def test_what_names_no_such_weights_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        Experiment.parse(document)
