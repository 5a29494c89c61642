"""The command ``ps-lab tables``."""

from pathlib import Path

import click
from rich.text import Text

from pslab.commands.failure import EPILOG, Failure, console, failures, trust_option
from pslab.commands.live import status_client
from pslab.display.progress import print_json
from pslab.display.tables import figures_of, hot_sentences, tables_view
from pslab.launch.status_client import StatusError
from pslab.runs.folder import Run, RunError
from pswire.command.options import security_options
from pswire.model.table_figures import TableFigures
from pswire.security.settings import SecurityOptions


@click.command(epilog=EPILOG)
@click.argument("target", metavar="HOST:PORT|RUN")
@click.option("--json", "as_json", is_flag=True, help="Print all numbers, one JSON object per table.")
@trust_option
@security_options
def tables(target: str, as_json: bool, trust: bool, security: SecurityOptions) -> None:
    """Show what a job's sparse tables hold, and how their rows are used.

    HOST:PORT is the server with task index 0 of a running cluster; RUN is a run folder, finished or
    running. Numbers are of all servers together.

    \b
      rows, MiB     rows, and the memory of rows and index
      load          the part of the index's places that are taken, at most 0.75
      unique        rows divided by the updates they had: 1 if each was updated once
      skew          the share of updates that went to the busiest 1% of rows
      per version   rows that a version changed in the mean, and the last one
      staleness     updates of a row between its reading and its gradient, in the mean
      made          rows made since the servers started; "evicted": rows removed since then
      not made      gradients that were dropped because rules of admission made no row for them

    Staleness is measured on a part of the gradients: those of every seventh version, and of many rows a
    sixteenth.
    """
    found = _finished(Path(target))
    if found is None:
        client = status_client(target, security, trusted=trust)
        try:
            found = figures_of(client.ask())
        except StatusError as error:
            raise Failure(error, error.code) from error
        finally:
            client.close()
    if not found:
        raise Failure(f"{target}: expected a job with sparse tables; it has none, or has not trained yet")
    if as_json:
        for table in found:
            print_json(table.to_json())
        return
    console().print(tables_view(found))
    for sentence in hot_sentences(found):
        console().print(Text(sentence))


def _finished(folder: Path) -> list[TableFigures] | None:
    """Return what the summary of a run says; None if it has none yet, or there is no such folder."""
    if not folder.is_dir():
        return None
    with failures(RunError):
        run = Run(folder)
        return list(run.summary.tables) if run.stopped else None
