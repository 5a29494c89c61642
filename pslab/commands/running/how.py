"""How ps-lab run runs: what its options say beside the experiment, and who is called with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from pslab.display.progress import choose, print_json
from pslab.launch.engines.launcher import EngineError
from pslab.launch.engines.registry import Options, Setting, check, engine_named, launcher_for
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.simulated import run_simulated
from pslab.launch.tasks import Daemons
from pslab.observe.tensorboard import EventSink
from pslab.observe.trackers import Sink, TrackerSink, load_trackers
from psserver.optimizers import build as build_optimizer
from psserver.policies import advice
from pswire.config.experiment import FROM_JOB, Experiment, ExperimentError


@dataclass(frozen=True, slots=True)
class How:
    """A run's folder, and how it is shown: the options of all engines."""

    out: Path | None
    force: bool
    resume_from: str | None
    restarts: int | None
    log_format: str
    tensorboard: bool
    trackers: Sequence[str]
    as_json: bool
    quiet: bool
    save: Path | None
    options: Options

    def sinks(self, experiment: Experiment) -> list[Sink]:
        """What is given the run's metrics. Raises TrackerError, and RunError where a package is missing."""
        chosen = load_trackers([*experiment.trackers.classes, *self.trackers])
        every = experiment.trackers.every
        sinks: list[Sink] = [TrackerSink(name, tracker, every) for name, tracker in chosen]
        return [EventSink(), *sinks] if self.tensorboard else sinks


def real(experiment: Experiment, how: How) -> FinishedRun:
    """As processes of the experiment's engine. Raises what `run_real` and `launcher_for` do."""
    sinks, display = how.sinks(experiment), choose(as_json=how.as_json, quiet=how.quiet)
    daemons = Daemons(log_format=how.log_format, restarts=how.restarts)
    return run_real(
        experiment,
        display,
        launcher_for(Setting(experiment, how.options, Path.cwd())),
        out=how.out,
        force=how.force,
        daemons=daemons,
        sinks=sinks,
        resume_from=how.resume_from,
    )


def simulated(experiment: Experiment, how: How) -> FinishedRun:
    """On a virtual clock. Raises what `run_simulated` does."""
    if how.log_format != "text":
        raise ExperimentError(
            f"--log-format {how.log_format}: expected text: a simulated run has no processes that log"
        )
    check(engine_named(experiment.run.engine), experiment, how.options)
    advise(experiment)
    quiet, sinks = how.quiet or how.as_json, how.sinks(experiment)
    return run_simulated(
        experiment, out=how.out, force=how.force, quiet=quiet, sinks=sinks, resume_from=how.resume_from
    )


def submitted(experiment: Experiment, how: How) -> None:
    """As a batch job; says its number and the run folder. Raises EngineError and RunError."""
    from pslab.launch.engines.slurm import submit

    if experiment.run.engine != "slurm":
        raise EngineError(f"--submit: is for engine slurm, got engine {experiment.run.engine}")
    check(engine_named("slurm"), experiment, how.options)
    done = submit(experiment, how.out, how.force, how.resume_from, _options(how), Path.cwd())
    if how.as_json:
        print_json({"event": "submitted", "job": done.job, "folder": str(done.folder)})
    else:
        click.echo(f"submitted: job {done.job}\nrun folder: {done.folder}")


def _options(how: How) -> list[str]:
    """What the batch job's ps-lab run is told beside the experiment."""
    said = ["--log-format", how.log_format]
    if how.restarts is not None:
        said += ["--restarts", str(how.restarts)]
    for tracker in how.trackers:
        said += ["--tracker", tracker]
    if how.save is not None:
        said += ["--save", str(how.save)]
    flags = {"--tensorboard": how.tensorboard, "--quiet": how.quiet}
    return [*said, *(flag for flag, given in flags.items() if given)]


def advise(experiment: Experiment) -> None:
    """One line when the policy is meant for another optimizer. Raises OptimizerError."""
    if experiment.optimizer.name == FROM_JOB:
        return
    advised = advice(experiment.policy.name, build_optimizer(experiment.optimizer.config).config)
    if advised is not None:
        click.echo(f"note: {advised}", err=True)
