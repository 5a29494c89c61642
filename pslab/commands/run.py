"""``ps-lab run``"""

from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, console
from pslab.display.progress import choose, print_json
from pslab.launch.experiments import load, run_local
from pslab.launch.outcome import outcome_json, outcome_text
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import RunError
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import advice
from pswire.config.experiment import Experiment, ExperimentError, load_experiment
from pswire.exits import ExitCode
from psworker.job.errors import JobError


@click.command(epilog=EPILOG)
@click.argument("experiment", type=click.Path(path_type=Path))
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
@click.option("--force", is_flag=True, help="Replace a former run in --out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a live table.")
@click.option("--quiet", is_flag=True, help="No progress; warnings and the outcome only.")
@click.pass_context
def run(
    context: click.Context,
    experiment: Path,
    overrides: tuple[str, ...],
    out: Path | None,
    engine: str,
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

    The run folder gets the resolved experiment.toml, decisions.jsonl, metrics.jsonl,
    summary.json, weights.safetensors and logs/ with what each process said.
    """
    try:
        if engine == "simulated":
            simulated = load_experiment(experiment, overrides)
            _advise(simulated)
            finished = run_simulated(simulated, out=out, force=force, quiet=quiet or as_json)
        else:
            loaded = load(experiment, overrides)
            _advise(loaded)
            finished = run_local(loaded, choose(as_json=as_json, quiet=quiet), out=out, force=force)
    except JobError as error:
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except (ExperimentError, OptimizerError, RunError) as error:
        raise Failure(error) from error
    if as_json:
        print_json(outcome_json(finished))
    else:
        console().print(outcome_text(finished))
    context.exit(int(finished.result.verdict.code))


def _advise(experiment: Experiment) -> None:
    """One line when the policy is meant for another optimizer. Raises OptimizerError."""
    advised = advice(experiment.policy.name, build_optimizer(experiment.optimizer.config).config)
    if advised is not None:
        click.echo(f"note: {advised}", err=True)
