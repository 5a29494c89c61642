"""Points of a log."""

from pathlib import Path
from typing import Any

import pytest

from pslab.observe.points import Point, Points
from pslab.runs.folder import Run
from tests.compare.test_timeline import three_commits
from tests.replay.simulated import simulate


def points(run: Run) -> list[Point]:
    reader = Points()
    return [point for entry in run.decisions() for point in reader.see(entry)]


def test_points_of_a_hand_made_log(tmp_path: Path) -> None:
    """Versions at 7, 15 and 20 s, the first grant at 1 s, a drop before the second."""
    found = points(three_commits(tmp_path / "run"))
    assert [(p.version, p.seconds, p.staleness) for p in found] == [
        (1, 7.0, (0,)),
        (2, 15.0, (0,)),
        (3, 20.0, (0,)),
    ]
    assert [p.metrics["accepted_share"] for p in found] == [1.0, 0.5, 1.0]
    assert [p.metrics["samples_per_second"] for p in found] == [8 / 6, 8 / 8, 8 / 5]
    assert found[0].metrics["loss"] == 0.5


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    def diverge(commit: dict[str, Any]) -> None:
        commit["loss"] = None

    assert all("loss" not in point.metrics for point in points(three_commits(tmp_path / "run", diverge)))


@pytest.mark.parametrize("policy", ["sync", "async", "bounded"])
def test_losses_are_those_of_metrics_jsonl(tmp_path: Path, policy: str) -> None:
    run = simulate(tmp_path / "run", policy, simulation={"evaluate": 20})
    lines = [metric for metric in run.metrics() if metric.kind == "train"]
    assert [(p.version, p.metrics["loss"]) for p in points(run)] == [(m.version, m.loss) for m in lines]
    assert sum(len(point.staleness) for point in points(run)) == run.summary.histogram.total()
