"""Looking at the model on its way, in virtual time."""

from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from pslab.simulator import SimulationError, build
from tests.replay.simulated import document

MLP = {"problem": "mlp", "compute": "exponential(1)"}


def run(folder: Path, **simulation: object) -> Run:
    given = document(
        "async", optimizer={"name": "sgd", "learning_rate": 0.3}, simulation={**MLP, **simulation}
    )
    given["job"] = {"module": "none:none", "epochs": 12}
    finished = run_simulated(Experiment.parse(given), out=folder, quiet=True)
    assert finished.result.ok
    return Run(finished.folder)


def test_every_so_many_versions_and_at_the_end(tmp_path: Path) -> None:
    found = run(tmp_path / "run", evaluate=50)
    evaluated = [metric for metric in found.metrics() if metric.kind == "eval"]
    last = found.summary.versions
    assert [metric.version for metric in evaluated] == [*range(50, last + 1, 50), last]
    trained = {metric.version: metric.t for metric in found.metrics() if metric.kind == "train"}
    assert all(metric.t == trained[metric.version] for metric in evaluated[:-1])
    accuracies = [metric.metrics["accuracy"] for metric in evaluated]
    assert accuracies[0] < accuracies[-1] == found.summary.metrics["accuracy"]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    blind, seeing = run(tmp_path / "a"), run(tmp_path / "b", evaluate=7)
    assert blind.summary.weights_sha256 == seeing.summary.weights_sha256
    assert (blind.path / "decisions.jsonl").read_bytes() == (seeing.path / "decisions.jsonl").read_bytes()


def test_the_end_is_where_the_accuracy_is_reached(tmp_path: Path) -> None:
    found = run(tmp_path / "run", evaluate=10, until_accuracy=0.9)
    accuracies = [metric.metrics["accuracy"] for metric in found.metrics() if metric.kind == "eval"]
    reached = next(number for number, accuracy in enumerate(accuracies) if accuracy >= 0.9)
    assert found.summary.versions == 10 * (reached + 1)
    assert "wanted was 0.9" in found.summary.reason and found.summary.success
    assert found.summary.versions < run(tmp_path / "all").summary.versions


def test_a_run_that_diverges_is_recorded_without_nan(tmp_path: Path) -> None:
    given = document(
        "async",
        optimizer={"name": "sgd", "learning_rate": 1e7},
        # So flat that the loss is infinite where the gradient is not yet.
        simulation={"problem": "quadratic", "evaluate": 1, "options": {"condition": 1, "curvatures": [1e-6]}},
    )
    finished = run_simulated(Experiment.parse(given), out=tmp_path / "run", quiet=True)
    text = (finished.folder / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"loss":null' in text
    assert "NaN" not in text and "Infinity" not in text


def test_an_accuracy_that_nobody_looks_for_is_refused() -> None:
    with pytest.raises(SimulationError, match="give simulation.evaluate, too"):
        build(Experiment.parse(document("async", simulation={**MLP, "until_accuracy": 0.9})))
