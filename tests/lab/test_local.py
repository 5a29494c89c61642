"""The local engine with fake daemons: order of starting, failures, interruptions, nothing left behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pslab.display.outcome import outcome_text
from pslab.display.progress import Quiet
from pslab.launch.exits import ExitTracker, end_text, exit_code
from pswire.exits import ExitCode
from tests.lab.drive import run_fakes
from tests.patience import PATIENCE, at_most
from tests.sentences import Recorder

ROOT = Path(__file__).parents[2]


class Notes(Quiet):
    """Records what a display receives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.warnings: list[tuple[str, str]] = []

    def event(self, name: str, event: dict[str, Any]) -> None:
        self.events.append((name, event))

    def warning(self, sentence: str, tail: str) -> None:
        self.warnings.append((sentence, tail))

    def said(self, name: str, kind: str) -> dict[str, Any]:
        return next(event for who, event in self.events if who == name and event["event"] == kind)

    def pids(self) -> list[int]:
        return [event["pid"] for _, event in self.events if "pid" in event]


def running(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [] if process.status() == "zombie" else [process]
    except psutil.NoSuchProcess:
        return []


def assert_gone(pids: list[int]) -> None:
    """A killed process may need a moment on a busy machine until the system has cleared it away."""
    psutil.wait_procs([process for pid in pids for process in running(pid)], timeout=at_most(10.0))
    assert pids and not [pid for pid in pids if running(pid)]


def test_a_start_that_waits_for_nobody_who_can_come() -> None:
    exits = ExitTracker(["server-0"], ["worker-0", "worker-1", "worker-2"])
    assert not exits.too_few("waiting for workers", 2)
    exits.exited("worker-1", int(ExitCode.REFUSED))
    assert not exits.too_few("waiting for workers", 1)  # worker-2 may still join
    assert not exits.too_few("training", 2)
    assert exits.too_few("waiting for workers", 2)
    verdict = exits.cannot_start()
    assert (verdict.code, verdict.culprit) == (ExitCode.REFUSED, "worker-1")
    assert verdict.reason.startswith(
        "the job cannot start, because it waits for 3 workers: worker-1 exited with code 5"
    )


@pytest.mark.cluster
def test_a_run_goes_from_start_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    notes = Notes()
    finished = run_fakes(tmp_path / "run", display=notes)
    assert finished.result.ok
    assert finished.result.warnings == ()
    # Server 1 chose its port first; server 0 was started with its address, the workers with both.
    first, second = notes.said("server-0", "ready"), notes.said("server-1", "ready")
    assert first["hosts"] == f"127.0.0.1:0,{second['address']}"
    assert second["hosts"] == "127.0.0.1:0,127.0.0.1:0"
    assert notes.said("worker-2", "started")["tf_config"] is None
    logs = sorted(path.name for path in (finished.folder / "logs").iterdir())
    assert logs == ["server-0.log", "server-1.log", "worker-0.log", "worker-1.log", "worker-2.log"]
    assert '"event": "ready"' in (finished.folder / "logs" / "server-0.log").read_text()
    assert "[cluster]" in (finished.folder / "experiment.toml").read_text()
    assert_gone(notes.pids())


@pytest.mark.cluster
def test_a_worker_that_crashes_is_reported_and_the_others_finish(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", worker="crash@1", display=notes)
    assert finished.result.ok
    ((sentence, tail),) = notes.warnings
    assert sentence.startswith("worker-1 exited with code 6 (the job module")
    assert "ValueError: no data" in tail
    assert '"event"' not in tail
    # How many go on is said at that moment, and not beneath the run's end.
    (warning,) = finished.result.warnings
    assert sentence.startswith(f"{warning}; ") and "still run" not in warning


@pytest.mark.cluster
def test_a_servers_warning_is_shown_at_once_and_at_the_end(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", server="warn@0", display=notes)
    assert notes.warnings == [("server-0: passed over checkpoint 7: it is damaged", "")]
    assert finished.result.ok and finished.result.warnings == (notes.warnings[0][0],)


@pytest.mark.cluster
def test_a_job_whose_workers_all_crash_fails_with_their_code(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", server="stay", worker="crash", display=notes)
    assert finished.result.verdict.code == ExitCode.JOB_FAILED
    reason = finished.result.verdict.reason
    assert reason.startswith("every worker failed: worker-") and reason.endswith(", and 2 more workers alike")
    assert "ValueError: no data" in finished.tail
    # What the first printed is shown with it; the last one's end is the run's.
    first, second = notes.warnings
    assert "ValueError: no data" in first[1]
    assert second[1] == "" and "; its output is in logs/worker-" in second[0]
    outcome = outcome_text(finished).plain
    assert "no data" not in outcome and f"the output of {finished.result.verdict.culprit} is above" in outcome
    assert_gone(notes.pids())


@pytest.mark.cluster
def test_a_server_that_dies_ends_the_run_with_its_code(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", server="die@1", worker="stubborn", display=notes)
    assert finished.result.verdict.code == ExitCode.DIVERGED
    assert finished.result.verdict.reason.startswith("the job failed: server-1 exited with code 8")
    assert finished.tail.splitlines() == ["ps-server: cannot go on", "an update is not finite"]
    assert_gone(notes.pids())


@pytest.mark.cluster
@pytest.mark.parametrize("task", [0, 1])
def test_a_server_that_cannot_start_is_the_cause(tmp_path: Path, task: int) -> None:
    finished = run_fakes(tmp_path / "run", server=f"in-use@{task}", display=Notes())
    assert finished.result.verdict.code == ExitCode.ADDRESS_IN_USE
    assert f"server-{task} exited with code 4" in finished.result.verdict.reason
    assert "the address is in use" in finished.tail


@pytest.mark.cluster
def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, sentences: Recorder) -> None:
    finished = run_fakes(tmp_path / "run", server="mute@1", display=Notes(), startup=0.3)
    assert finished.result.verdict.code == ExitCode.UNREACHABLE
    sentences.check(finished.result.verdict.reason)


@pytest.mark.cluster
def test_servers_that_go_on_without_workers_are_stopped(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", server="stay", display=notes, farewell=0.1)
    assert finished.result.verdict.code == ExitCode.ABANDONED
    assert_gone(notes.pids())


@pytest.mark.cluster
@pytest.mark.parametrize(("server", "farewell"), [("stay@1", PATIENCE), ("still@0", 0.5)])
def test_a_copy_that_does_not_know_of_the_end_is_stopped_and_the_job_has_succeeded(
    tmp_path: Path, server: str, farewell: float
) -> None:
    """One goes on until it is told, the other stands still."""
    notes = Notes()
    finished = run_fakes(tmp_path / "run", server=server, display=notes, replicas=2, farewell=farewell)
    assert finished.result.ok, finished.result.verdict
    assert_gone(notes.pids())


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_fakes(tmp_path / "run", worker="fertile", display=notes)
    assert finished.result.ok
    assert_gone([notes.said(f"worker-{n}", "child")["pid"] for n in range(3)])


@contextmanager
def driven(
    folder: Path, server: str, worker: str, every: str = ""
) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A run in a process of its own, up to the point where all three workers compute; and all pids."""
    command = [sys.executable, "-m", "tests.lab.drive", str(folder), server, worker, every]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        pids, computing = [process.pid], 0
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line).get("said", {})
            if "pid" in said:
                pids.append(said["pid"])
            computing += said.get("event") == "computing"
            if computing == 3:
                break
        try:
            yield process, pids
        finally:
            process.kill()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("worker", "number", "code"), [("hang", signal.SIGINT, 130), ("stubborn", signal.SIGTERM, 143)]
)
def test_an_interrupted_run_leaves_no_process(
    tmp_path: Path, worker: str, number: signal.Signals, code: int
) -> None:
    with driven(tmp_path / "run", "stay", worker) as (process, pids):
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert json.loads(output.splitlines()[-1])["reason"] == f"stopped by {number.name}"
    assert_gone(pids)


@pytest.mark.cluster
def test_servers_that_save_what_there_is_have_more_time_for_it(tmp_path: Path) -> None:
    """Here more than it takes until a worker that does not end is killed."""
    with driven(tmp_path / "run", "saving", "stubborn", "9 versions") as (process, pids):
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    said = [json.loads(line).get("said", {}).get("event") for line in output.splitlines()]
    assert process.returncode == 130 and said.count("saved") == 2
    assert_gone(pids)


def test_losing_a_server_is_a_consequence_where_another_failed_by_itself() -> None:
    course = ExitTracker(["server-0", "server-1"], ["worker-0"])
    course.exited("server-0", ExitCode.UNREACHABLE)
    course.exited("server-1", -9)
    assert course.verdict is not None
    assert (course.verdict.code, course.verdict.culprit) == (ExitCode.UNREACHABLE, "server-1")
    assert "server-1 was killed by SIGKILL" in course.verdict.reason


def test_the_course_goes_on_while_any_worker_may_finish() -> None:
    course = ExitTracker(["server-0"], ["worker-0", "worker-1"])
    assert course.exited("worker-0", 1) is not None
    assert course.verdict is None
    assert course.exited("worker-1", 0) is None
    assert course.workers_over
    assert course.verdict is None
    course.exited("server-0", 0)
    assert course.verdict is not None
    assert course.verdict.code == ExitCode.OK


def test_a_run_of_scripts_ends_well_when_all_of_them_have() -> None:
    course = ExitTracker(["server-0"], ["worker-0", "worker-1"], scripts=True)
    course.exited("server-0", 0)
    course.exited("worker-0", 0)
    assert course.verdict is None, "a script may go on when the job is over"
    course.exited("worker-1", ExitCode.JOB_FAILED)
    assert course.verdict is not None
    assert (course.verdict.code, course.verdict.culprit) == (ExitCode.JOB_FAILED, "worker-1")
    course.restarted("worker-1")
    course.exited("worker-1", 0)
    assert course.verdict is not None and course.verdict.code == ExitCode.OK


def test_a_run_ends_with_a_documented_code_even_when_its_processes_are_killed() -> None:
    assert exit_code(-15, ExitCode.ABANDONED) == ExitCode.TERMINATED
    assert exit_code(-2, ExitCode.ABANDONED) == ExitCode.INTERRUPTED
    assert exit_code(-9, ExitCode.ABANDONED) == ExitCode.ABANDONED
    assert exit_code(6, ExitCode.ABANDONED) == 6
    assert end_text(99) == "exited with code 99"
