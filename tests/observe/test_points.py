"""Points of a log, those of a log that grows, and the hook that gives them to trackers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pslab.cli import cli
from pslab.display.progress import Quiet
from pslab.experiment import Experiment
from pslab.launch.engines.local import LocalLauncher
from pslab.launch.experiments import run_real
from pslab.launch.tasks import Daemons
from pslab.observe.follow import Follower, LineTail, Point, Points, evaluation
from pslab.observe.trackers import Observing, RunInfo, TrackerError, load_trackers
from pslab.runs.folder import Run, RunError
from tests.compare.test_timeline import three_commits
from tests.lab.drive import FAKE
from tests.observe.my_trackers import Lines, NoLog, Stuck, told
from tests.patience import PATIENCE
from tests.replay.simulated import document, simulate

TRACKERS = "tests.observe.my_trackers"
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
    follower, found = Follower(grown, every=3), list[Point]()
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
    follower = Follower(tmp_path)
    assert list(follower.rest()) == []
    for behind, stopped in (('{"i":1,"t":0.0,"kind":"start","workers":1}\n', False), ("", True)):
        with log.open("a", encoding="utf-8") as file:
            file.write(behind)
        if stopped:
            summary.touch()
        with pytest.raises(RunError, match="decisions.jsonl: a line entry has no 'i'"):
            list((Follower(tmp_path) if stopped else follower).rest())


# The hook


def lab_run(tmp_path: Path, *options: str, **trackers: Any) -> Result:
    file = tmp_path / "experiment.toml"
    sections = document("async", simulation=SHORT) | ({"trackers": trackers} if trackers else {})
    file.write_text(Experiment.parse(sections).to_toml(), encoding="utf-8")
    out = ("--out", str(tmp_path / "run"), "--engine", "simulated", "--quiet")
    return CliRunner().invoke(cli, ["run", str(file), *out, *options])


def test_a_tracker_is_told_a_simulated_run(tmp_path: Path) -> None:
    """Named in the file, and read back from the run folder's copy of it."""
    done = lab_run(tmp_path, classes=[f"{TRACKERS}:Lines"], every=5)
    assert done.exit_code == 0, done.output
    run = Run(tmp_path / "run")
    start, *logged, finish = told(tmp_path)
    assert start == ["start", "test", "run", "async", True]
    assert finish == ["finish", True, run.summary.versions]
    trained = [[dict(p.metrics), p.version, p.seconds] for p in points(run, 5)]
    assert [line[1:] for line in logged if "loss" in line[1]] == trained
    assert run.experiment.trackers.classes == [f"{TRACKERS}:Lines"]


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "csv_tracker.py"
    assert lab_run(tmp_path, "--tracker", f"{example}:CsvTracker").exit_code == 0
    lines = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    last = points(Run(tmp_path / "run"), 10)[-1]
    assert f"{last.version},{last.seconds},loss,{last.metrics['loss']}" in lines


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Absent", "tests.observe.my_trackers has no 'Absent'"),
        ("Half", "expected methods start, log, finish, got none of log, finish"),
        ("Demanding", "its constructor raised TypeError"),
        ("NoStart", "start raised ConnectionError: nobody answers"),
    ],
)
def test_a_tracker_that_cannot_be_used_ends_the_run_before_it_began(
    tmp_path: Path, name: str, said: str
) -> None:
    done = lab_run(tmp_path, "--tracker", f"{TRACKERS}:{name}")
    assert done.exit_code != 0 and said in done.stderr
    assert not list(tmp_path.glob("run/decisions.jsonl"))


def test_what_is_no_target_is_refused_with_the_experiment(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trackers.classes"):
        Experiment.parse({"trackers": {"classes": ["nothing"]}})
    with pytest.raises(TrackerError, match="tracker nowhere:It: .*'nowhere'"):
        load_trackers(["nowhere:It"])


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    done = lab_run(tmp_path, "--tracker", f"{TRACKERS}:NoLog", "--tracker", f"{TRACKERS}:Lines")
    assert done.exit_code == 0
    assert (
        f"tracker {TRACKERS}:NoLog raised ConnectionError: the line is cut; it receives no more"
        in done.stdout
    )
    # NoLog was told of the start and then no more; Lines of everything.
    assert [line[0] for line in told(tmp_path)].count("finish") == 1


def info(folder: Path) -> RunInfo:
    return RunInfo("test", folder, {"policy": {"name": "async"}}, virtual=False)


def test_a_tracker_that_does_not_finish_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Observing(info(folder), [("stuck", Stuck())], patience=0.05) as observing:
        pass
    assert observing.warnings == ["tracker stuck: did not process the whole run within 0.05 s"]


def test_a_local_run_is_told_while_it_goes_on(tmp_path: Path) -> None:
    """The daemons are fakes and write nothing; the test writes their folder while the tracker looks."""
    folder = tmp_path / "run"
    recorded = simulate(tmp_path / "recorded", "async", simulation=SHORT)
    folder.mkdir()
    log = recorded.log.read_text(encoding="utf-8")
    with Observing(info(folder), [("lines", Lines())]):
        (folder / "decisions.jsonl").write_text(log, encoding="utf-8")
        wait_until(lambda: len(told(tmp_path)) > 20)
        assert told(tmp_path)[-1][0] == "log"


def wait_until(condition: Callable[[], bool]) -> None:
    import threading

    for _ in range(int(PATIENCE / 0.05)):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to pass")


def test_the_local_engine_starts_and_finishes_its_trackers(tmp_path: Path) -> None:
    daemons = Daemons(
        server=(sys.executable, FAKE, "server", "ok"),
        worker=(sys.executable, FAKE, "worker", "ok"),
        startup=PATIENCE, linger=0.5, patience=0.5, farewell=PATIENCE,
    )  # fmt: skip
    experiment = Experiment.parse({"cluster": {"workers": 2}, "job": {"module": "fake:job"}})
    trackers = [("lines", Lines()), ("broken", NoLog())]
    finished = run_real(
        experiment, Quiet(), LocalLauncher(), out=tmp_path / "run", daemons=daemons, trackers=trackers
    )
    assert finished.result.ok
    assert [line[0] for line in told(tmp_path) if line[0] == "start"] == ["start", "start"]
    assert [line[0] for line in told(tmp_path)].count("finish") >= 1
