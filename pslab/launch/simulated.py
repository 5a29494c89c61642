"""Engine "simulated": an experiment on a virtual clock, in this process."""

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from pslab.launch.exits import RunResult, Verdict
from pslab.launch.experiments import FinishedRun
from pslab.observe.trackers import Observing, RunInfo, Sink
from pslab.runs.folder import EXPERIMENT, RunError
from pslab.runs.making import open_folder
from pslab.simulator import Cluster, Folder, TrainerFactory, build
from pslab.simulator.checkpoints import FOLDER as CHECKPOINTS
from pslab.simulator.checkpoints import Resumed, Saver, resume
from psserver.checkpoint import CheckpointError, FolderLock
from psserver.checkpoint.resumption import AUTO, LATEST
from psserver.checkpoint.rewind import RewindError
from pswire.config.experiment import Experiment, ExperimentError
from pswire.exits import ExitCode
from pswire.own_files import write_file
from psworker.local import Trainer

# Between two lines of progress, in seconds of the real clock.
LINE_INTERVAL = 2.0

_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def run_simulated(
    experiment: Experiment,
    *,
    out: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    sinks: Sequence[Sink] = (),
    going_on: str | None = None,
) -> FinishedRun:
    """Simulate; the run folder is ``runs/<name>`` where `out` is not given. `sinks` get the run at its end.

    `going_on`: go on in `out` from the checkpoint of that name, or "latest".
    Raises ExperimentError, RunError, TrackerError, and JobError where the job's own code fails.
    """
    try:
        cluster = build(experiment, _job_trainers)
    except ValueError as error:
        raise ExperimentError(str(error)) from error
    folder, going_on = open_folder(out, experiment.run.name, force, going_on)
    resumed = (
        None if going_on is None else _resumed(cluster, folder, LATEST if going_on == AUTO else going_on)
    )
    mark, names = (None, None) if resumed is None else (resumed.mark, resumed.names)
    info = RunInfo(experiment.run.name, folder, experiment.model_dump(), virtual=True)
    with Observing(info, sinks, live=False) as observing:
        write_file(folder / EXPERIMENT, experiment.to_toml())
        cluster.folder = Folder(folder, record=experiment.simulation.record, going_on=mark)
        saver = Saver(cluster, folder, experiment.run.keep, names=names)
        _simulate(cluster, quiet)
    warnings = (*_warnings(cluster), *saver.problems, *observing.warnings)
    return FinishedRun(folder, RunResult(_verdict(cluster), warnings), "")


def _resumed(cluster: Cluster, folder: Path, which: str) -> Resumed:
    """Raises RunError."""
    try:
        with FolderLock(folder / CHECKPOINTS):
            resumed = resume(cluster, folder, which)
    except (CheckpointError, RewindError) as error:
        raise RunError(f"--resume {which}: {error}") from error
    for sentence in resumed.passed:
        print(f"note: passed over {sentence}", file=sys.stderr)
    return resumed


def _simulate(cluster: Cluster, quiet: bool) -> None:
    with _no_collection(), _signals(cluster) as received:
        cluster.run(None if quiet else _progress())
    if received and cluster.coordinator.stopped is None:
        cluster.stop(_SAID[received[0]], success=False, cause=received[0].name)
    cluster.conclude()


def _job_trainers(experiment: Experiment) -> TrainerFactory:
    """Every worker has a trainer of its own: a model may keep state that does not travel.

    A simulated run repeats, so its trainers are deterministic.
    """
    from psworker.trainers import leave_clipping, load_trainer

    def make(number: int) -> Trainer:
        section = experiment.workers.get(number)
        trainer: Trainer = load_trainer(experiment, section.device if section else "auto", deterministic=True)
        leave_clipping(trainer, experiment.optimizer.config)
        return trainer

    return make


@contextmanager
def _no_collection() -> Iterator[None]:
    """A simulation makes no cycles, and looking for some among a million tickets takes time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _signals(cluster: Cluster) -> Iterator[list[signal.Signals]]:
    """The signals received. The first one halts the cluster between two actions, so that the log stays whole.

    A second one is Python's own again: it gets through to a policy or job that does not end.
    """
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {number: signal.getsignal(number) for number in _SAID}

    def halt(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        cluster.halted = True
        restore()

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    for number in _SAID:
        signal.signal(number, halt)
    try:
        yield received
    finally:
        restore()


def _progress() -> Callable[[Cluster], None]:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last = time.monotonic()

    def show(cluster: Cluster) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= LINE_INTERVAL:
            last = now
            version = cluster.coordinator.version
            goal = f" of {cluster.terms.versions}" if cluster.terms.versions else ""
            console.print(f"{cluster.queue.now:.3f} virtual s  version {version}{goal}", markup=False)

    return show


def _verdict(cluster: Cluster) -> Verdict:
    stopped = cluster.coordinator.stopped
    assert stopped is not None
    diverged = [worker for worker in cluster.workers.values() if worker.failure]
    if stopped.cause == "abandoned" and diverged:
        # As the exit code of the first real worker that gives up.
        first = diverged[0]
        return Verdict(int(ExitCode.DIVERGED), f"every worker is gone; {first.name}: {first.failure}")
    failures = {
        "SIGINT": ExitCode.INTERRUPTED,
        "SIGTERM": ExitCode.TERMINATED,
        "abandoned": ExitCode.ABANDONED,
        "diverged": ExitCode.DIVERGED,
    }
    code = ExitCode.OK if stopped.success else failures.get(stopped.cause, ExitCode.JOB_FAILED)
    return Verdict(int(code), stopped.reason)


def _warnings(cluster: Cluster) -> tuple[str, ...]:
    return tuple(f"{w.name}: {w.failure}" for w in cluster.workers.values() if w.failure)
