"""The ps-worker command's own work, in this process, on a server in this process: TensorFlow is loaded once."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from psworker.cli import main
from psworker.connection import Connection
from psworker.keras import named_variables
from psworker.running import Reporter, WorkerOptions, run
from tests.service.serving import serving

pytestmark = [
    pytest.mark.tensorflow,
    # Between Keras and numpy, when a model is saved.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

JOB = """
import keras
import numpy as np
from psworker import Job

class Plain(Job):
    batches: int = 4
    optimizer = {optimizer!r}
    loss = "mse"

    def model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def dataset(self, worker_index, worker_count, seed):
        return [(np.ones((3, 2), "f"), np.ones((3, 1), "f"))] * self.batches

    def heldout(self):
        return np.ones((4, 2), "f"), np.ones((4, 1), "f")
"""


def work(
    folder: Path,
    hosts: str,
    *,
    optimizer: str | None = None,
    save: Path | None = None,
    best: Path | None = None,
    job: dict[str, object] | None = None,
    **options: object,
) -> ExitCode:
    file = folder / "job_of_a_test.py"
    file.write_text(JOB.format(optimizer=optimizer))
    document = {"job": {"module": f"{file}:Plain", "options": options, **(job or {})}}
    connection = Connection.resolve(hosts, server_timeout=10.0)
    options = WorkerOptions(device="cpu", server_timeout=10.0, save=save, save_best=best)
    return run(Experiment.parse(document), connection, options, Reporter(as_json=False))


def test_an_empty_dataset_names_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as cluster, pytest.raises(SystemExit) as ended:
        work(tmp_path, cluster.hosts, batches=0)
    assert ended.value.code == ExitCode.JOB_FAILED
    said = capsys.readouterr().err
    assert "nothing was trained" in said and "Plain had no batch for this worker" in said


def test_another_optimizer_than_the_servers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the servers' own, or from-job, is not."""
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.01}"]) as cluster:
        with pytest.raises(SystemExit) as ended:
            work(tmp_path, cluster.hosts, optimizer="adam")
        assert ended.value.code == ExitCode.REFUSED
        assert "this server runs sgd with learning_rate = 0.01" in capsys.readouterr().err
        assert work(tmp_path, cluster.hosts, optimizer="sgd") == ExitCode.OK
    out = tmp_path / "run"
    with serving(overrides=["optimizer={name='from-job'}"], out=out) as cluster:
        assert work(tmp_path, cluster.hosts, optimizer="adam") == ExitCode.OK
    assert json.loads((out / "summary.json").read_text())["optimizer"]["name"] == "adam"


def test_initial_values_of_another_seed_than_the_servers_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in (7, 0):
        with serving(overrides=[f"run.seed={seed}"]) as cluster:
            assert work(tmp_path, cluster.hosts) == ExitCode.OK
    said = [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "another_seed"]
    assert len(said) == 1 and said[0].endswith("--set run.seed=7")


def test_a_worker_writes_the_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what it wrote has the weights that the server kept."""
    model = tmp_path / "model.keras"
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.1}"], out=tmp_path / "run") as cluster:
        assert work(tmp_path, cluster.hosts, save=model) == ExitCode.OK
    assert f"the model of the last version is in {model}" in capsys.readouterr().out
    kept = load_file(tmp_path / "run" / "weights.safetensors")
    loaded = keras.models.load_model(model)
    assert set(kept) == {"dense/kernel", "dense/bias"}
    for name, variable in named_variables(loaded).items():
        np.testing.assert_array_equal(kept[name], variable.numpy())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("there.keras", "is there already"),
        ("model.h5", "ends in .keras"),
        ("none/model.keras", "no folder that can be written to"),
    ],
)
def test_a_place_for_the_model_that_is_none_is_refused_at_once(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "there.keras").touch()
    said = CliRunner().invoke(main, ["--ps-hosts", "x:1", "--job", "a:b", "--save", str(tmp_path / name)])
    assert said.exit_code == ExitCode.USAGE and words in said.output


def evaluations(folder: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["version"], line["metrics"]["loss"]) for line in lines if line["kind"] == "eval"]


def test_held_out_data_is_measured_while_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate so large that the first versions are the best: patience ends the job, and the best one is kept."""
    best, out = tmp_path / "best.keras", tmp_path / "run"
    job = {"evaluate_every": "2 versions", "patience": 2, "epochs": 5}
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.6}"], out=out) as cluster:
        assert work(tmp_path, cluster.hosts, job=job, best=best) == ExitCode.OK
    found = evaluations(out)
    # The last line is that of the final version.
    assert [version for version, _ in found] == [2, 4, 6, 7]
    assert found[0][1] < found[1][1] < found[2][1]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["success"] and summary["reason"].startswith("w0 ended the job: loss was not better")
    assert "at version 2 in 2 evaluations" in summary["reason"]
    assert f"version 2: loss {found[0][1]:.4f}" in capsys.readouterr().out
    loss = keras.models.load_model(best).evaluate(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert loss == pytest.approx(found[0][1], rel=1e-5)
    assert check_run(Run(out)).ok


def test_a_plateau_lowers_the_servers_learning_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate at which the loss grows is lowered, as an entry of the log, and then the loss falls."""
    out = tmp_path / "run"
    job: dict[str, object] = {"evaluate_every": "1 version", "epochs": 3}
    job |= {"plateau": 1, "plateau_factor": 0.25, "plateau_minimum": 0.2}
    with serving(overrides=["optimizer={name='sgd', learning_rate=0.8}"], out=out) as cluster:
        assert work(tmp_path, cluster.hosts, job=job) == ExitCode.OK
    log = [json.loads(line) for line in (out / "decisions.jsonl").read_text().splitlines()]
    (rate,) = [entry for entry in log if entry["kind"] == "rate"]
    assert (rate["learning_rate"], rate["scale"], rate["worker"]) == (0.2, 0.25, "w0")
    applied = {entry["version"]: entry["lr_scale"] for entry in log if entry["kind"] == "apply"}
    # Version 1 is the best at first, and 2 is not; the contribution behind its evaluation makes version 4 of 3.
    lowered = min(version for version, scale in applied.items() if scale != 1.0)
    assert set(applied.values()) == {1.0, 0.25} and lowered == 4
    found = dict(evaluations(out))
    assert found[1] < found[2] < found[3] and found[4] < found[3]
    assert "after the evaluation of version 2 the learning rate is lowered to 0.2" in capsys.readouterr().out
    assert check_run(Run(out)).ok


@pytest.mark.parametrize(
    ("overrides", "job", "words"),
    [
        ([], {"monitor": "f1"}, "job.monitor 'f1': the evaluation measures loss"),
        (["policy.name=median"], {"plateau": 1}, "job.plateau: no worker sets the learning rate of this job"),
        (
            [
                "optimizer={name='sgd', learning_rate={schedule='cosine', initial_learning_rate=0.1, decay_steps=9}}"
            ],
            {"plateau": 1},
            "it follows a schedule",
        ),
    ],
)
def test_what_could_never_be_watched_ends_the_worker_before_its_first_step(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    job: dict[str, object],
    words: str,
) -> None:
    with serving(overrides=overrides, out=tmp_path / "run") as cluster:
        with pytest.raises(SystemExit) as ended:
            work(tmp_path, cluster.hosts, job={"evaluate_every": "1 epoch", "epochs": 3, **job})
        assert ended.value.code == ExitCode.JOB_FAILED
        assert words in capsys.readouterr().err
    assert '"kind":"commit"' not in (tmp_path / "run" / "decisions.jsonl").read_text().replace(" ", "")


def test_options_that_could_do_nothing_are_refused(tmp_path: Path) -> None:
    best = ["--ps-hosts", "x:1", "--job", "a:b", "--save-best", str(tmp_path / "best.keras")]
    said = CliRunner().invoke(main, best)
    assert said.exit_code == ExitCode.USAGE and "--save-best: needs --evaluate-every" in said.output
    said = CliRunner().invoke(main, ["--ps-hosts", "x:1", "--job", "a:b", "--set", "job.patience=2"])
    assert said.exit_code == ExitCode.USAGE and "job.patience: needs job.evaluate_every" in said.output
    said = CliRunner().invoke(main, ["--ps-hosts", "x:1", "--job", "a:b", "--set", "job.plateau=2"])
    assert said.exit_code == ExitCode.USAGE and "job.plateau: needs job.evaluate_every" in said.output
    said = CliRunner().invoke(main, ["--ps-hosts", "x:1", "--job", "a:b", "--set", "job.plateau_factor=0.5"])
    assert said.exit_code == ExitCode.USAGE and "job.plateau_factor: needs job.plateau" in said.output
