"""``ps-lab trace``"""

from pathlib import Path

import click

from pslab.commands.failure import EPILOG, Failure, say_unfinished
from pslab.observe.trace import write_trace
from pslab.runs.folder import TRACE, Run, RunError


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write it [default: RUN/trace.json].",
)
def trace(folder: Path, out: Path | None) -> None:
    """Write a run as a trace to look at in a timeline viewer: who computed, communicated and waited when.

    The file is in the Trace Event Format (JSON). Open it at https://ui.perfetto.dev, which reads it
    in your browser without sending it anywhere. Every worker has a lane with a slice per ticket, and in
    it pull, compute and push; an arrow leads from each contribution to the update that applied it.
    Click a slice for its staleness, its weight and what became of it. Drops, cancelled tickets, lost
    workers and returns are marks in the lane.

    RUN is the folder of any run with a decision log: local, simulated, finished or not.
    """
    try:
        run = Run(folder)
        say_unfinished([run])
        target = out or run.path / TRACE
        count = write_trace(run.decisions(), target)
    except RunError as error:
        raise Failure(error) from error
    except OSError as error:
        raise Failure(f"{error.filename}: cannot be written: {error.strerror}") from error
    click.echo(f"trace: {target} ({count} events)")
