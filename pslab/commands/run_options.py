"""Actions of `ps-lab run`: train an experiment as processes, or simulate it."""

from dataclasses import dataclass
from pathlib import Path

import click

from pslab.display.progress import choose
from pslab.experiment import Experiment
from pslab.launch.engines.registry import EngineOptions, check, engine_named, launcher_for
from pslab.launch.experiments import FinishedRun, run_real
from pslab.launch.simulated import run_simulated
from pslab.launch.tasks import Daemons
from psserver.optimizers import build as build_optimizer
from psserver.policies import advice
from pswire.config.experiment import FROM_JOB, ExperimentError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `ps-lab run` beside the experiment."""

    out: Path | None
    force: bool
    resume_from: str | None
    restarts: int | None
    log_format: str
    as_json: bool
    quiet: bool
    options: EngineOptions


def train(experiment: Experiment, how: RunOptions) -> FinishedRun:
    """Run as processes of the experiment's engine. Raises what `run_real` and `launcher_for` raise."""
    display = choose(as_json=how.as_json, quiet=how.quiet)
    daemons = Daemons(log_format=how.log_format, restarts=how.restarts)
    return run_real(
        experiment,
        display,
        launcher_for(experiment, how.options, Path.cwd()),
        out=how.out,
        force=how.force,
        daemons=daemons,
        resume_from=how.resume_from,
    )


def simulate(experiment: Experiment, how: RunOptions) -> FinishedRun:
    """Run on a virtual clock. Raises what `run_simulated` raises."""
    if how.log_format != "text":
        raise ExperimentError(
            f"--log-format: expected text, got {how.log_format}: a simulated run has no processes that log"
        )
    if how.restarts is not None:
        raise ExperimentError(
            "--restarts: expected an engine with processes, got simulated, whose [faults] say what comes back"
        )
    check(engine_named(experiment.run.engine), experiment, how.options)
    advise(experiment)
    quiet = how.quiet or how.as_json
    return run_simulated(experiment, out=how.out, force=how.force, quiet=quiet, resume_from=how.resume_from)


def advise(experiment: Experiment) -> None:
    """Print notes: what is the user's own code; a policy that is meant for another optimizer. Raises OptimizerError."""
    for key, value in experiment.own_code.items():
        click.echo(f"note: {key} = {value} is your own code", err=True)
    if experiment.optimizer.name == FROM_JOB:
        return
    advised = advice(experiment.policy.name, build_optimizer(experiment.optimizer.config).config)
    if advised is not None:
        click.echo(f"note: {advised}", err=True)
