"""``ps-lab run``"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import choose, print_json
from pslab.export import target
from pslab.export.exporting import exported
from pslab.launch.experiments import FinishedRun, load, of_script, run_local
from pslab.launch.local import Daemons
from pslab.launch.outcome import outcome_json, outcome_text
from pslab.launch.simulated import run_simulated
from pslab.observe.live import Sink
from pslab.observe.tensorboard import EventSink
from pslab.observe.trackers import TrackerError, TrackerSink, load_trackers
from pslab.runs.folder import Run, RunError
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import advice
from pswire.config.experiment import FROM_JOB, Experiment, ExperimentError, load_experiment
from pswire.exits import ExitCode
from pswire.logs.events import FORMATS
from psworker.job.errors import JobError


@click.command(epilog=EPILOG)
@click.argument("arguments", metavar="EXPERIMENT | -- ARGUMENT...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Every worker runs this training script, which calls model.fit with psworker.keras.distribute, instead of an "
    "EXPERIMENT; what stands behind -- is its command line.",
)
@click.option("--workers", type=click.IntRange(1, 65536), metavar="N", help="cluster.workers.")
@click.option("--servers", type=click.IntRange(1), metavar="N", help="cluster.servers.")
@click.option("--policy", metavar="NAME", help="policy.name.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: policy.name=async. Repeatable.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Run folder [default: runs/NAME, or runs/NAME-2, ...].",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "simulated"]),
    default="local",
    show_default=True,
    help="local: processes on this machine. simulated: a virtual clock, see [simulation].",
)
@click.option(
    "--resume",
    metavar="latest|NAME",
    help="Go on in --out from this checkpoint, also with another cluster.servers.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    metavar="N",
    help="Start processes that die again, so many times in all; servers only where checkpoints are taken.  [default: "
    "3 where they are, else 0]",
)
@click.option(
    "--initial",
    metavar="FILE",
    help="job.initial: begin with the weights in FILE.keras or FILE.safetensors, without an optimizer's state.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Export the trained model at the end, too: model.keras, or what else ps-lab export --to takes.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Workers compute on one thread each, so that the run repeats and replays to the bit; costs the other cores.",
)
@click.option("--tensorboard", is_flag=True, help="Write event files into the run folder's tensorboard/.")
@click.option(
    "--tracker",
    "trackers",
    multiple=True,
    metavar="MODULE:CLASS",
    help="Give the metrics to a class of your own, beside those of [trackers]. Repeatable.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Of the logs of servers and workers. json: an object per line, with a stable event name.",
)
@click.option("--force", is_flag=True, help="Replace a former run in --out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a live table.")
@click.option("--quiet", is_flag=True, help="No progress; warnings and the outcome only.")
@click.pass_context
def run(
    context: click.Context,
    arguments: tuple[str, ...],
    script: Path | None,
    workers: int | None,
    servers: int | None,
    policy: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    engine: str,
    resume: str | None,
    restarts: int | None,
    initial: str | None,
    save: Path | None,
    deterministic: bool,
    tensorboard: bool,
    trackers: tuple[str, ...],
    log_format: str,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Train EXPERIMENT with its servers and workers as processes on this machine, or simulate it.

    Shows progress as a live table on a terminal and as plain lines elsewhere. Ctrl-C ends
    every process in order, a second one at once. A worker that fails is reported while the
    others go on. The path of a job module begins at the current directory.

    With --engine simulated, the same coordinator, policy and shards run on a virtual clock:
    [simulation], [links] and [faults] say how long steps take and what goes wrong. It trains the
    [job] for real, or a numpy problem, or (without a [job]) looks at time only.

    \b
    A Keras script of your own, as four workers of two servers (docs/keras.md):
      ps-lab run --script train.py --workers 4 --servers 2 --policy bounded -- --epochs 3

    The run folder gets the resolved experiment.toml, decisions.jsonl, metrics.jsonl,
    summary.json, weights.safetensors and logs/ with what each process said. With --tensorboard
    and --tracker (docs/observe.md) other tools get the metrics: while a local run goes on, and
    at the end of a simulated one.
    """
    said = {
        "cluster.workers": workers,
        "cluster.servers": servers,
        "policy.name": policy,
        "job.initial": initial,
        "run.deterministic": True if deterministic else None,
    }
    settings = {key: value for key, value in said.items() if value is not None}
    overrides = (*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *overrides)
    experiment = _experiment_path(arguments) if script is None else None
    if resume is not None and (out is None or force or script is not None):
        raise Failure(
            "--resume goes on in the folder of an experiment's run: expected --out RUN, without --force"
        )
    how = _How(out, force, resume, restarts, log_format, tensorboard, trackers, as_json, quiet)
    try:
        if save is not None:
            target.check(save)
            if script is not None and target.needs_model(save):
                raise RunError(f"--save {save}: the script has the model: let it call model.save(...)")
        if experiment is None:
            assert script is not None
            if engine == "simulated":
                raise ExperimentError(
                    "--engine simulated: expected an EXPERIMENT, a script runs for real only"
                )
            finished = _run_real(of_script(script, arguments, settings, overrides), how)
        elif engine == "simulated":
            finished = _simulated(load_experiment(experiment, overrides), how)
        else:
            loaded = load(experiment, overrides)
            _advise(loaded)
            finished = _run_real(loaded, how)
        if save is not None and finished.result.ok:
            exported(Run(finished.folder), save)
    except JobError as error:
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except (ExperimentError, OptimizerError, RunError, TrackerError) as error:
        raise Failure(error) from error
    _tell(finished, save, as_json)
    context.exit(int(finished.result.verdict.code))


@dataclass(frozen=True, slots=True)
class _How:
    """A run's folder, and how it is shown: the options of both engines."""

    out: Path | None
    force: bool
    going_on: str | None
    restarts: int | None
    log_format: str
    tensorboard: bool
    trackers: Sequence[str]
    as_json: bool
    quiet: bool

    def sinks(self, experiment: Experiment) -> list[Sink]:
        """What is given the run's metrics. Raises TrackerError, and RunError where a package is missing."""
        chosen = load_trackers([*experiment.trackers.classes, *self.trackers])
        every = experiment.trackers.every
        sinks: list[Sink] = [TrackerSink(name, tracker, every) for name, tracker in chosen]
        return [EventSink(), *sinks] if self.tensorboard else sinks


def _experiment_path(arguments: Sequence[str]) -> Path:
    if not arguments:
        raise click.UsageError("Missing argument 'EXPERIMENT', or --script FILE.")
    if len(arguments) > 1:
        raise click.UsageError(
            f"expected one EXPERIMENT, got also {arguments[1]!r}; a script follows --script"
        )
    return Path(arguments[0])


def _run_real(experiment: Experiment, how: _How) -> FinishedRun:
    sinks, display = how.sinks(experiment), choose(as_json=how.as_json, quiet=how.quiet)
    daemons = Daemons(log_format=how.log_format, restarts=how.restarts)
    return run_local(
        experiment,
        display,
        out=how.out,
        force=how.force,
        daemons=daemons,
        sinks=sinks,
        going_on=how.going_on,
    )


def _simulated(experiment: Experiment, how: _How) -> FinishedRun:
    if how.log_format != "text":
        raise ExperimentError(
            f"--log-format {how.log_format}: expected text: a simulated run has no processes that log"
        )
    _advise(experiment)
    quiet, sinks = how.quiet or how.as_json, how.sinks(experiment)
    return run_simulated(
        experiment, out=how.out, force=how.force, quiet=quiet, sinks=sinks, going_on=how.going_on
    )


def _tell(finished: FinishedRun, save: Path | None, as_json: bool) -> None:
    if as_json:
        print_json(outcome_json(finished))
        return
    console().print(outcome_text(finished))
    if save is not None and finished.result.ok:
        click.echo(f"model: {save}")


def _advise(experiment: Experiment) -> None:
    """One line when the policy is meant for another optimizer. Raises OptimizerError."""
    if experiment.optimizer.name == FROM_JOB:
        return
    advised = advice(experiment.policy.name, build_optimizer(experiment.optimizer.config).config)
    if advised is not None:
        click.echo(f"note: {advised}", err=True)
