"""Engine "simulated": run an experiment on a virtual clock, in this process."""

import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from pslab.experiment import Experiment
from pslab.launch.exits import RunResult, Verdict
from pslab.launch.experiments import FinishedRun
from pslab.replay.worker_replica import memory_of
from pslab.runs.folder import EXPERIMENT, RunError
from pslab.runs.making import open_folder
from pslab.simulator import Cluster, Folder, TrainerFactory, build
from pslab.simulator.build import SimulationError, trainer_factory
from pslab.simulator.checkpoints import FOLDER as CHECKPOINTS
from pslab.simulator.checkpoints import ResumedCluster, Saver, resume
from psserver.checkpoint import CheckpointError, FolderLock
from psserver.checkpoint.resumption import AUTO, LATEST
from psserver.checkpoint.rewind import RewindError
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.own_files import write_file
from psworker.local import Trainer

# Seconds of the real clock between two lines of progress.
LINE_INTERVAL = 2.0

# Why a policy may make no version in a simulation of time.
UNKNOWN = (
    "a simulation of time has neither losses nor norms, and policies see NaN: if the policy goes by them, give "
    "simulation.problem"
)

_REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def run_simulated(
    experiment: Experiment,
    *,
    out: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    resume_from: str | None = None,
    trainers: Callable[[Experiment], TrainerFactory] | None = None,
) -> FinishedRun:
    """Simulate an experiment into `out` or ``runs/<name>``.

    `trainers`: of a [job] that is computed for real; one of its own for each run where not given.
    `resume_from`: a checkpoint of the run in `out`, or "latest". Raises ExperimentError, RunError, and JobError if the
    job's own code fails.
    """
    if experiment.run.rescue:
        raise ExperimentError(
            "run.rescue: expected none in a simulated run, which has no server that writes weights"
        )
    try:
        cluster = build(experiment, trainers or _job_trainers)
    except ValueError as error:
        raise ExperimentError(str(error)) from error
    folder, resume_from = open_folder(out, experiment.run.name, force, resume_from)
    resumed = (
        None
        if resume_from is None
        else _resumed(cluster, folder, LATEST if resume_from == AUTO else resume_from)
    )
    mark, names = (None, None) if resumed is None else (resumed.mark, resumed.names)
    write_file(folder / EXPERIMENT, experiment.to_toml())
    cluster.folder = Folder(folder, record=experiment.simulation.record, going_on=mark)
    saver = Saver(cluster, folder, experiment.run.keep, names=names)
    _simulate(cluster, quiet)
    warnings = (*_warnings(cluster), *saver.problems)
    return FinishedRun(folder, RunResult(_verdict(cluster), warnings), "")


def _resumed(cluster: Cluster, folder: Path, which: str) -> ResumedCluster:
    """Restore the cluster from a checkpoint. Raises RunError."""
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
    if received and cluster.coordinator.state.stopped is None:
        cluster.stop(_REASONS[received[0]], success=False, cause=received[0].name)
    cluster.conclude()


def _job_trainers(experiment: Experiment) -> TrainerFactory:
    """Return a factory of one trainer per worker, because a model may keep state that is never sent.

    The trainers are deterministic, because a simulated run must be repeatable.
    """
    from psworker.trainers import load_trainer

    def make(number: int) -> Trainer:
        section = experiment.workers.get(number)
        device, optimizer = section.device if section else "auto", experiment.optimizer.config
        trainer: Trainer = load_trainer(experiment, device, deterministic=True, optimizer=optimizer)
        return trainer

    return make


def model_plan(experiment: Experiment) -> Plan:
    """Return the layout of the experiment's model. Raises SimulationError, and whatever a job's code raises."""
    factory, nbytes = trainer_factory(experiment, _job_trainers), experiment.simulation.payload_bytes
    if factory is not None:
        specs = [spec for spec, _ in factory(0).specs]
    elif nbytes:
        # Of unknown shape: rows as long as a block of int8.
        specs = [VariableSpec("model", (max(1, nbytes // 4096), 1024))]
    else:
        raise SimulationError(
            "there is no model: expected a [job], simulation.problem or simulation.payload_bytes"
        )
    return make_plan(specs, experiment.cluster.servers)


class SharedTrainers:
    """Trainers of a [job] that many runs use in turn: a model is built, and its step traced, once for each worker.

    Each run begins with the memory of a new trainer. All runs need the same job, optimizer rule and number of servers.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[_AttachedOnce, list[Any]]] = {}

    def __call__(self, experiment: Experiment) -> TrainerFactory:
        make = _job_trainers(experiment)

        def shared(number: int) -> Trainer:
            if number not in self._made:
                trainer = _AttachedOnce(make(number))
                self._made[number] = trainer, memory_of(trainer)
            trainer, fresh = self._made[number]
            if fresh:
                trainer.remember(fresh)
            return trainer

        return shared


class _AttachedOnce:
    """A trainer that begins each run with its first values, and is laid out anew, which traces its step, only for
    another plan."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        # Steps leave a version's weights in the model, and so in the trainer's own specs.
        self.specs = [(spec, np.array(values)) for spec, values in trainer.specs]
        self._fingerprint: object = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def attach(self, plan: Plan) -> None:
        if plan.fingerprint != self._fingerprint:
            self._trainer.attach(plan)
            self._fingerprint = plan.fingerprint


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: a simulation makes no cycles, and searching a million tickets is slow."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _signals(cluster: Cluster) -> Iterator[list[signal.Signals]]:
    """Yield the list of received signals. The first halts the cluster between two actions, so the log stays whole.

    A second one has Python's default effect, which also ends a policy or job that hangs.
    """
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    former = {number: signal.getsignal(number) for number in _REASONS}

    def halt(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        cluster.halted = True
        restore()

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    for number in _REASONS:
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
            version = cluster.coordinator.state.version
            goal = f" of {cluster.terms.versions}" if cluster.terms.versions else ""
            console.print(f"{cluster.queue.now:.3f} virtual s  version {version}{goal}", markup=False)

    return show


def _verdict(cluster: Cluster) -> Verdict:
    stopped = cluster.coordinator.state.stopped
    assert stopped is not None
    diverged = [worker for worker in cluster.workers.values() if worker.failure]
    if stopped.cause == "abandoned" and diverged:
        # The exit code that the first real worker to give up would have.
        first = diverged[0]
        return Verdict(int(ExitCode.DIVERGED), f"every worker is gone; {first.name}: {first.failure}")
    failures = {
        "SIGINT": ExitCode.INTERRUPTED,
        "SIGTERM": ExitCode.TERMINATED,
        "abandoned": ExitCode.ABANDONED,
        "diverged": ExitCode.DIVERGED,
    }
    code = ExitCode.OK if stopped.success else failures.get(stopped.cause, ExitCode.JOB_FAILED)
    if _untrained(cluster):
        why = f"; {UNKNOWN}" if cluster.store.empty else ""
        reason = f"no version was made, though workers have contributed ({stopped.reason}){why}"
        return Verdict(int(ExitCode.MISSING if stopped.success else code), reason)
    return Verdict(int(code), stopped.reason)


def _warnings(cluster: Cluster) -> tuple[str, ...]:
    return tuple(f"{w.name}: {w.failure}" for w in cluster.workers.values() if w.failure)


def _untrained(cluster: Cluster) -> bool:
    """Whether workers have contributed, and no version was made of it."""
    tallies = cluster.coordinator.state.roster.tallies.values()
    return not cluster.coordinator.state.version and any(tally.committed for tally in tallies)
