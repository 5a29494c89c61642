"""Points of a log, and those of a log that grows."""

from pathlib import Path
from typing import Any

import pytest

from pslab.observe.follow import LineTail, Point, Points, RunFollower, evaluation
from pslab.runs.folder import Run, RunError
from tests.compare.test_timeline import three_commits
from tests.replay.simulated import simulate

SHORT = {"problem": "quadratic", "compute": "exponential(1)"}


def points(run: Run, every: int = 1) -> list[Point]:
    reader = Points(every)
    found = [point for entry in run.decisions() for point in reader.see(entry)]
    return [*found, *reader.rest()]


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


def test_a_point_of_more_versions_and_the_rest(tmp_path: Path) -> None:
    first, rest = points(three_commits(tmp_path / "run"), every=2)
    assert (first.version, rest.version) == (2, 3)
    assert first.metrics == {
        "loss": 0.5, "staleness/mean": 0.0, "staleness/max": 0.0, "accepted_share": 2 / 3,
        "samples_per_second": 16 / 14,
    }  # fmt: skip


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    def diverge(commit: dict[str, Any]) -> None:
        commit["loss"] = None

    assert all("loss" not in point.metrics for point in points(three_commits(tmp_path / "run", diverge)))


@pytest.mark.parametrize("policy", ["sync", "async", "bounded"])
def test_losses_are_those_of_metrics_jsonl(tmp_path: Path, policy: str) -> None:
    run = simulate(tmp_path / "run", policy, simulation={"evaluate": 20})
    lines = [metric for metric in run.metrics() if metric.kind == "train"]
    assert [(p.version, p.metrics["loss"]) for p in points(run)] == [(m.version, m.loss) for m in lines]
    assert sum(len(point.staleness) for point in points(run, 7)) == run.summary.histogram.total()


def test_a_growing_file_gives_each_line_once_and_only_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    tail = LineTail(file)
    assert tail.read().lines == []
    with file.open("w", encoding="utf-8") as writer:
        for text, expected in [("a\nb", ["a"]), ("", []), ("c\n", ["bc"]), ("d\ne\n", ["d", "e"])]:
            writer.write(text)
            writer.flush()
            assert tail.read().lines == expected


def test_a_run_in_pieces_gives_the_points_of_the_whole(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={"evaluate": 10})
    grown = tmp_path / "grown"
    grown.mkdir()
    follower, found = RunFollower(grown, every=3), list[Point]()
    for name in ("decisions.jsonl", "metrics.jsonl"):
        data = (run.path / name).read_bytes()
        with (grown / name).open("wb") as file:
            for start in range(0, len(data), 999):
                file.write(data[start : start + 999])
                file.flush()
                found += follower.points()
    found += follower.rest()
    evaluations = [evaluation(metric) for metric in run.metrics() if metric.kind == "eval"]
    assert len(evaluations) >= 2
    assert [p for p in found if "evaluation/accuracy" in p.metrics] == evaluations
    assert [p for p in found if p.staleness] == points(run, 3)


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Once one that can be read follows on it, or the job has come to its end; a kill may leave it as the last one."""
    log, summary = tmp_path / "decisions.jsonl", tmp_path / "summary.json"
    log.write_text("{}\n", encoding="utf-8")
    follower = RunFollower(tmp_path)
    assert list(follower.rest()) == []
    for behind, stopped in (('{"i":1,"t":0.0,"kind":"start","workers":1}\n', False), ("", True)):
        with log.open("a", encoding="utf-8") as file:
            file.write(behind)
        if stopped:
            summary.touch()
        with pytest.raises(RunError, match="decisions.jsonl: a line entry has no 'i'"):
            list((RunFollower(tmp_path) if stopped else follower).rest())
