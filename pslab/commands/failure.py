"""What all subcommands share: foreseen errors, the end of every --help, the console."""

from collections.abc import Sequence

import click
from rich.console import Console

from pslab.runs.folder import Run
from pswire.exits import ExitCode

EPILOG = "Exit codes: ps-lab --help lists them."


trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Use what the run folder names: a policy that is module:Class, certificates and tokens of its [security]. For "
    "folders of which you know who made them.",
)


class Failure(click.ClickException):
    """An error that was foreseen: one message, one exit code, no traceback."""

    def __init__(self, message: object, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(str(message))
        self.code = code


def console() -> Console:
    """Standard output as it is now; long lines are left to the terminal, tables in a file get room."""
    plain = Console(highlight=False, soft_wrap=True)
    return plain if plain.is_terminal else Console(highlight=False, soft_wrap=True, width=120)


def say_unfinished(runs: Sequence[Run]) -> None:
    """One sentence on standard error for each run that was cut off or goes on: how far it is read."""
    for run in runs:
        if run.unfinished:
            click.echo(f"note: {run.unfinished}", err=True)
