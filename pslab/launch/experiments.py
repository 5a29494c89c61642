"""From an experiment file to a finished run folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pslab.display.progress import Display
from pslab.launch.local import Daemons, LocalRun, RunResult
from pslab.observe.live import Observing, Sink
from pslab.observe.trackers import RunInfo
from pslab.runs.folder import free_folder, make_folder
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy
from pswire.config.experiment import Experiment, ExperimentError, load_experiment


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended, well or not, where it left its files, and the end of its culprit's output.

    `reported`: that was shown already, with a warning on the way.
    """

    folder: Path
    result: RunResult
    tail: str
    reported: bool = False


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment and try its policy and optimizer, before any process starts.

    Raises ExperimentError with one message that says what is wrong.
    """
    experiment = load_experiment(path, overrides)
    if not experiment.job.module:
        raise ExperimentError(
            f'{path}: job.module is missing; expected "package.module:attribute" or "file.py:attribute"'
        )
    try:
        cluster, policy = experiment.cluster, experiment.policy
        built = build_policy(policy.name, policy.knobs, cluster.workers, cluster.servers)
        build_optimizer(experiment.optimizer.config).check_aggregator(built.tensors.aggregator)
    except ValueError as error:
        raise ExperimentError(f"{path}: {error}") from error
    return experiment


def run_local(
    experiment: Experiment,
    display: Display,
    *,
    out: Path | None = None,
    force: bool = False,
    daemons: Daemons | None = None,
    cwd: Path | None = None,
    sinks: Sequence[Sink] = (),
) -> FinishedRun:
    """Run an experiment as processes on this machine; `out` is ``runs/<name>`` where not given.

    `cwd`: where the processes run, and so where a job module's path begins. `sinks` are given the run's
    metrics while it goes on. Raises RunError when the folder cannot be used, TrackerError when a sink does
    not start.
    """
    folder = make_folder(out or free_folder(experiment.run.name), force)
    run = LocalRun(experiment, folder, display, daemons, cwd)
    info = RunInfo(experiment.run.name, folder, experiment.model_dump(), virtual=False)
    with display:
        with Observing(info, sinks) as observing:
            result = run.run()
        for warning in observing.warnings:
            display.warning(warning, "")
    result = replace(result, warnings=(*result.warnings, *observing.warnings))
    culprit = result.verdict.culprit
    if culprit is None:
        return FinishedRun(folder, result, "")
    return FinishedRun(folder, result, run.tail(culprit), run.reported(culprit))
