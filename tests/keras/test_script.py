"""`ps-lab run --script`: a user's training script as several workers, with the display and exit codes of any run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pslab.experiment import Experiment
from pslab.launch.experiments import of_script
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("lab_script.py")


def ps_lab(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pslab", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def run_script(folder: Path, *arguments: object, workers: int = 2) -> subprocess.CompletedProcess[str]:
    options = (
        "--script",
        SCRIPT,
        "--workers",
        workers,
        "--servers",
        2,
        "--policy",
        "bounded",
        "--out",
        folder,
    )
    return ps_lab("run", *options, "--", *arguments)


def kinds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


@pytest.mark.nightly
@pytest.mark.tensorflow
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_script_that_raises_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    done = run_script(tmp_path / "run", 1, "raises")
    assert done.returncode == ExitCode.MISSING, done.stdout + done.stderr
    assert not json.loads((tmp_path / "run" / "summary.json").read_text())["success"]
    assert "worker-1 exited with code 6" in done.stderr + done.stdout
    assert "ValueError: no data for worker 1" in done.stderr + done.stdout
    (left,) = [e for e in kinds(tmp_path / "run") if e["kind"] == "leave" and e["worker"] == "w1"]
    assert left["reason"] == "ValueError in the script"


@pytest.mark.tensorflow
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_script_fits_several_times_and_its_end_decides(tmp_path: Path) -> None:
    """A second fit is in the log of the first; what is compiled anew, and another model, are jobs of their own."""
    done = run_script(tmp_path / "run", 1, "phases")
    assert done.returncode == ExitCode.JOB_FAILED, done.stdout + done.stderr
    assert "worker 1 fails behind its last fit" in done.stdout + done.stderr
    assert "run folder: " in done.stdout
    for worker in range(2):
        said = (tmp_path / "run" / "logs" / f"worker-{worker}.log").read_text()
        assert said.count(" - loss: ") == 1
    log = kinds(tmp_path / "run")
    (model,) = (entry for entry in log if entry["kind"] == "model")
    assert model["optimizer"]["name"] == "adam" and log[0]["policy"]["name"] == "bounded"
    assert len(model["function"]) == 64
    jobs = [tmp_path / "run", tmp_path / "run" / "job-2", tmp_path / "run" / "job-3"]
    counts = []
    for job in jobs:
        assert json.loads((job / "summary.json").read_text())["success"]
        log = kinds(job)
        assert {entry["worker"] for entry in log if entry["kind"] == "commit"} == {"w0", "w1"}
        counts.append([sum(entry["kind"] == kind for entry in log) for kind in ("start", "commit")])
    assert counts == [[2, 20], [1, 10], [1, 10]]
    checked = ps_lab("check", "--json", jobs[0])
    assert [json.loads(line)["ok"] for line in checked.stdout.splitlines()] == [True] * 3
    assert "job-2" in ps_lab("compare", jobs[0]).stdout
    assert "worker 0 of 2 is at version" in (tmp_path / "run" / "logs" / "worker-0.log").read_text()
    replayed = ps_lab("replay", jobs[0])
    assert replayed.returncode == ExitCode.USAGE and "only the script itself can repeat" in replayed.stderr


@pytest.mark.cluster
def test_a_script_that_distributes_nothing_says_so_and_the_run_fails(tmp_path: Path) -> None:
    done = run_script(tmp_path / "run", 1, "nothing", workers=1)
    # sys.exit() in the script is its own affair; what it did not do is seen.
    assert done.returncode == ExitCode.JOB_FAILED
    assert "expected psworker.keras.distribute(model)" in done.stdout


def test_settings_of_a_script_are_an_experiment_file(tmp_path: Path) -> None:
    made = of_script(SCRIPT, ["--epochs", "3"], ["cluster.workers=3", "run.seed=4"])
    assert (made.cluster.workers, made.run.seed, made.run.name) == (3, 4, "lab_script")
    assert made.job.arguments == ["--epochs", "3"]
    assert made.optimizer.name == "from-job"
    file = tmp_path / "experiment.toml"
    file.write_text(made.to_toml())
    assert Experiment.load(file).to_toml() == made.to_toml()
    named = of_script(SCRIPT, [], ["optimizer.name=adam"])
    assert named.optimizer.name == "adam"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"job": {"script": "a.py", "module": "a:b"}}, "a job is a module or a script"),
        ({"job": {"script": "a.py", "epochs": 2}}, "the script sets it"),
        ({"job": {"script": "a.py", "options": {"a": 1}}}, "a script has arguments"),
        ({"job": {"script": "a.py"}, "cluster": {"prefetch": True}}, "fit does not fetch ahead"),
        ({"job": {"script": "a.py"}, "workers": {"0": {}}}, "has no delays"),
        (
            {"job": {"script": "a.py"}, "run": {"deterministic": True}},
            "configures TensorFlow's threads itself",
        ),
        ({"job": {"script": "a.py", "plateau": 1}}, "by the callback ReduceLROnPlateau"),
    ],
)
def test_what_would_do_nothing_for_a_script_is_refused(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        Experiment.parse(document)
