"""The command ``ps-lab predict``."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console

from pslab.commands.compare import WIDE
from pslab.commands.failure import EPILOG, console, failures, say_unfinished
from pslab.compare.groups import grouped
from pslab.compare.sweep import SweepError, cells
from pslab.display.progress import print_json
from pslab.experiment import Experiment
from pslab.predict.prediction import Prediction, forecast, predict
from pslab.predict.simulation import REPEAT
from pslab.predict.steps import StepTimes, step_times_of
from pslab.predict.table import prediction_json, prediction_table, sentences
from pslab.runs.folder import EXPERIMENT, Run, RunError
from pslab.simulator import SimulationError
from psserver.policies import PolicyError, check_trusted
from pswire.command.options import overrides_option
from pswire.config.distributions import DelayError
from pswire.config.experiment import ExperimentError
from psworker.job.errors import JobError

# Errors whose own text says which input cannot be used.
READABLE = (DelayError, ExperimentError, JobError, PolicyError, RunError, SimulationError, SweepError)


@click.command("predict", epilog=EPILOG)
@click.argument(
    "paths", metavar="RUN|EXPERIMENT...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@overrides_option("Override a key of every EXPERIMENT: links.bandwidth=11.7e6. Repeatable.")
@click.option(
    "--vary",
    "varied",
    multiple=True,
    metavar="KEY=V1,V2,...",
    help="Values of a key of every EXPERIMENT. Repeatable: every combination is predicted.",
)
@click.option(
    "--pace",
    "source",
    type=click.Path(path_type=Path),
    metavar="EXPERIMENT|RUN",
    help="Where the durations of steps come from: measured in another run folder, or declared by another experiment "
    "file [default: each one's own].",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=REPEAT,
    show_default=True,
    help="Simulated runs per prediction: the first has the run's own seed, and so the same injected delays; each "
    "other one has a seed of its own.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Run a policy given as module:Class in a run folder. Only for folders whose author you trust.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON objects instead of a table.")
def predict_command(
    paths: tuple[Path, ...],
    overrides: tuple[str, ...],
    varied: tuple[str, ...],
    source: Path | None,
    repeat: int,
    trust: bool,
    as_json: bool,
) -> None:
    """Put what was measured beside a simulation of the same cluster and beside theory.

    Runs that differ only by their seed count as one. A simulation is of time only: nothing is trained. It takes the
    durations of steps from the run: those that a simulated run declared, or those that were measured in a real one.
    Theory has a number only where its assumptions hold. Below the table stand the formulas.

    An EXPERIMENT is predicted before it is run: bytes of a contribution, seconds of a batch, and the least that the
    link (links.bandwidth, bytes/s) and the computation (simulation.compute) allow. Encoding, decoding and updates come
    on top.

    \b
      ps-lab predict runs/digits-*
      ps-lab predict runs/digits/experiment.toml --vary policy.name=async,ssp --pace runs/digits
      ps-lab predict large.toml --vary cluster.wire_dtype=float32,int8/bfloat16,top-k/top-k
    """
    with failures(*READABLE):
        runs = [Run(path) for path in paths if not path.is_file()]
        files = [path for path in paths if path.is_file()]
        if not files and (overrides or varied):
            raise RunError(
                f"--{'set' if overrides else 'vary'}: expected an EXPERIMENT, got only run folders"
            )
        say_unfinished(runs)
        pace = None if source is None else _pace(source, trust)
        found = [*_of_runs(runs, pace, repeat, trust), *_of_files(files, overrides, varied, pace, repeat)]
    if as_json:
        for prediction in found:
            print_json(prediction_json(prediction))
        return
    screen = console()
    if not screen.is_terminal:
        screen = Console(highlight=False, width=WIDE)
    screen.print(prediction_table(found), soft_wrap=False)
    for sentence in sentences(found):
        click.echo(sentence)


def _pace(source: Path, trust: bool) -> Experiment | StepTimes:
    if not source.is_dir():
        return Experiment.load(source)
    run = Run(source)
    check_trusted(run.experiment.policy.name, trust)
    return step_times_of(run)


def _of_runs(
    runs: Sequence[Run], pace: Experiment | StepTimes | None, repeat: int, trust: bool
) -> Iterator[Prediction]:
    for run in runs:
        if (run.path / EXPERIMENT).is_file():
            check_trusted(run.experiment.policy.name, trust)
    for group in grouped(runs):
        try:
            found = predict(group, pace, repeat)
        except READABLE:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            run = group.runs[0].run
            raise RunError(
                f"{run.path}: the policy {run.summary.policy} and the optimizer {run.summary.optimizer} cannot be "
                f"read: {error}"
            ) from error
        yield found


def _of_files(
    files: Sequence[Path],
    overrides: Sequence[str],
    varied: Sequence[str],
    pace: Experiment | StepTimes | None,
    repeat: int,
) -> Iterator[Prediction]:
    for path in files:
        for cell in cells(path, overrides, varied, 1):
            pairs = [setting.partition("=") for setting in cell.choice]
            choice = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs)
            yield forecast(cell.experiment, choice or cell.experiment.run.name, pace, repeat)
