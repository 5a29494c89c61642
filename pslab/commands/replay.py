"""The command ``ps-lab replay``."""

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from pslab.commands.failure import EPILOG, Failure, say_unfinished
from pslab.display.progress import print_json
from pslab.replay.execution import Replayed
from pslab.replay.run_folder import prove, replay_of
from pslab.replay.view import replayed_json, replayed_lines
from pslab.replay.worker_replica import DataError
from pslab.runs.folder import Run, RunError
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from psworker.job.errors import JobError

# Versions between two lines of progress.
EVERY = 500


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of sentences.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.pass_context
def replay(
    context: click.Context,
    folder: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Execute a run again, in this process, from its decision log.

    Every gradient is computed again from the version that its ticket was granted, and the servers' own
    code executes every decision; then the weights are compared with the run's fingerprint, bit for bit.
    If they differ, the first contribution that differs is named, and the exit code is 9. This requires the
    kind of processor that made the run, run.deterministic = true (ps-lab run --deterministic), and a job
    whose data is a function of worker and batch number. The log has no payloads, and gradients computed on
    several threads may differ in the last bits. Random numbers of Keras layers (dropout) are reproduced;
    others (numpy's global ones) are not.

    An unfinished run is executed up to the last complete line of its log, and a note says so. It has no
    fingerprint, and the exit code is 0 if every contribution equals the logged one.

    This imports and runs the job that RUN names: replay only folders whose author you trust.

    \b
      ps-lab replay runs/digits-async
    """
    try:
        run = Run(folder)
        say_unfinished([run])
        equal = _replay(run, as_json, quiet or as_json)
    except JobError as error:
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except (DataError, ExperimentError, RunError) as error:
        raise Failure(f"{folder}: {error}" if isinstance(error, DataError) else error) from error
    context.exit(int(ExitCode.OK if equal else ExitCode.VIOLATIONS))


def _replay(run: Run, as_json: bool, quiet: bool) -> bool:
    execution = replay_of(run)
    replayed = execution.run(None, None if quiet else _progress(run.summary.versions))
    proof = prove(run, execution)
    if as_json:
        print_json(replayed_json(str(run.path), replayed, proof) | {"unfinished": run.unfinished})
    else:
        for line in replayed_lines(replayed, proof):
            click.echo(line)
    # An unfinished run has no fingerprint.
    return replayed.first is None and (proof.holds or run.unfinished is not None)


def _progress(versions: int) -> Callable[[Replayed], None]:
    screen = Console(stderr=True, highlight=False)

    def show(replayed: Replayed) -> None:
        if replayed.version and replayed.version % EVERY == 0:
            screen.print(f"version {replayed.version} of {versions}")

    return show
