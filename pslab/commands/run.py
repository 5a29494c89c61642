"""The command ``ps-lab run``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pslab.commands import run_options
from pslab.commands.failure import EPILOG, Failure, console, failures
from pslab.commands.run_options import RunOptions
from pslab.display.outcome import outcome_json, outcome_text
from pslab.display.progress import print_json
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError
from pslab.launch.engines.registry import ENGINES, EngineOptions, engine_named, engines_text
from pslab.launch.experiments import checked, of_script
from pslab.launch.job_place import with_job
from pslab.runs.folder import EXPERIMENT, RunError
from psserver.optimizers import OptimizerError
from psserver.policies import names
from pswire.command.options import (
    OptionError,
    chosen_keys,
    key_options,
    log_format_option,
    overrides_option,
    typed_options,
)
from pswire.config.experiment import ExperimentError
from pswire.config.flags import RUN
from psworker.job.errors import JobError


@click.command(epilog=EPILOG)
@click.argument("arguments", metavar="[EXPERIMENT] [-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead of an EXPERIMENT, run this training script in every worker. The script calls model.fit with "
    "psworker.keras.distribute; the words after -- are its command line.",
)
@key_options(
    RUN,
    names={"policy.name": names, "run.engine": ENGINES.keys},
    more={
        "policy.name": f"Built in: {' | '.join(names())}. --set policy.KNOB=VALUE sets a knob.",
        "run.engine": engines_text(),
    },
)
@overrides_option("Override a key: policy.name=async. Repeatable.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Run folder [default: runs/NAME, or runs/NAME-2, ...].",
)
@click.option(
    "--hosts",
    metavar="H0,H1:4,...",
    help="Engine ssh: machines, each NAME for one worker or NAME:N for N workers; the servers run on the first, those "
    "with replicas on one each. Default: cluster.hosts.",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    default="",
    help="Engine ray: an existing cluster. Default: RAY_ADDRESS.",
)
@click.option(
    "--resume",
    metavar="latest|auto|NAME",
    help="Resume the run in --out from this checkpoint, also with another cluster.servers. auto: from the latest; "
    "start from the beginning if there is none, and do nothing if the job has succeeded.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    metavar="N",
    help="Restart each process that dies at most N times, with backoff; servers only if checkpoints are taken or "
    "there are replicas.  [default: 6 on engines with nodes, 3 with checkpoints or replicas, else 0]",
)
@log_format_option("the logs of servers and workers")
@click.option("--force", is_flag=True, help="Replace an earlier run in --out.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a live table."
)
@click.option("--quiet", is_flag=True, help="Print no progress, only warnings and the outcome.")
@click.pass_context
def run(
    context: click.Context,
    /,
    arguments: tuple[str, ...],
    script: Path | None,
    overrides: tuple[str, ...],
    out: Path | None,
    hosts: str | None,
    address: str,
    resume: str | None,
    restarts: int | None,
    log_format: str,
    force: bool,
    as_json: bool,
    quiet: bool,
    **keys: Any,
) -> None:
    """Train EXPERIMENT with its servers and workers as processes, or simulate it.

    Shows progress as a live table on a terminal and as plain lines elsewhere. Ctrl-C ends every
    process in order, a second Ctrl-C at once. A worker that fails is reported while the others go on.
    The path of a job's file is relative to the experiment file, or else to the current folder.

    With --engine simulated, the same coordinator, policy and shards run on a virtual clock:
    [simulation], [links] and [faults] say how long steps take and what goes wrong. It trains the
    [job] for real, or a numpy problem, or (without a [job]) simulates the timing only.

    \b
    A Keras script of your own, with four workers and two servers (docs/keras.md):
      ps-lab run --script train.py --workers 4 --servers 2 --policy bounded -- --epochs 3

    The run folder gets the resolved experiment.toml, decisions.jsonl, metrics.jsonl,
    summary.json, weights.safetensors and logs/ with the output of each process.
    """
    try:
        overrides = chosen_keys(RUN, keys, overrides)
    except OptionError as error:
        raise Failure(error) from error
    if resume is not None and script is not None:
        raise Failure(
            f"--resume: expected the experiment that the run's folder holds, got --script {script}: "
            f"ps-lab run {(out or Path('RUN')) / EXPERIMENT} --out {out or 'RUN'} --resume {resume}"
        )
    if resume is not None and (out is None or force):
        raise Failure("--resume: expected --out RUN of an experiment's run, without --force")
    machines = tuple(part for part in (hosts or "").split(",") if part.strip())
    engine = EngineOptions(hosts=machines, address=address)
    how = RunOptions(out, force, resume, restarts, log_format, as_json, quiet, engine)
    with failures(EngineError, ExperimentError, OptimizerError, RunError, JobError):
        if script is None:
            loaded = _experiment(arguments, overrides, typed_options(keys))
        else:
            loaded = _experiment_of_script(script, arguments, overrides)
        processes = engine_named(loaded.run.engine).make is not None
        finished = run_options.train(loaded, how) if processes else run_options.simulate(loaded, how)
    if as_json:
        print_json(outcome_json(finished))
    else:
        console().print(outcome_text(finished))
    context.exit(int(finished.result.verdict.code))


def _experiment(arguments: Sequence[str], overrides: Sequence[str], typed: Mapping[str, str]) -> Experiment:
    """Load EXPERIMENT. Raises ExperimentError, EngineError, OptimizerError."""
    if not arguments:
        raise click.UsageError("Missing argument 'EXPERIMENT', or --script FILE.")
    if len(arguments) > 1:
        raise click.UsageError(
            f"expected one EXPERIMENT, got also {arguments[1]!r}; arguments of a script need --script"
        )
    path = Path(arguments[0])
    loaded = with_job(Experiment.load(path, overrides, typed), path)
    if engine_named(loaded.run.engine).make is not None:
        run_options.advise(checked(loaded, path))
    return loaded


def _experiment_of_script(script: Path, arguments: Sequence[str], overrides: Sequence[str]) -> Experiment:
    """Make the experiment of a training script. Raises ExperimentError, EngineError."""
    loaded = of_script(script, arguments, overrides)
    if engine_named(loaded.run.engine).make is None:
        raise ExperimentError(
            f"--engine {loaded.run.engine}: expected an EXPERIMENT, got --script, which runs as processes only"
        )
    return loaded
