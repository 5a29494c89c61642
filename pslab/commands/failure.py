"""Shared parts of all subcommands: expected errors, the end of every --help, the console."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from pslab.runs.folder import Run
from pswire.exits import ExitCode
from pswire.logs.lines import escaped_lines
from psworker.job.errors import JobError

EPILOG = "Exit codes: ps-lab --help lists them."


class Failure(click.ClickException):
    """An expected error: one message, one exit code, no traceback."""

    def __init__(self, message: object, code: ExitCode = ExitCode.USAGE) -> None:
        # What others wrote into a folder harms no terminal.
        super().__init__(escaped_lines(str(message)))
        self.code = code


@contextmanager
def failures(*expected: type[Exception]) -> Iterator[None]:
    """Turn expected errors into a `Failure`. An error in a job's code keeps its traceback and its own exit code."""
    try:
        yield
    except JobError as error:
        if JobError not in expected:
            raise
        raise Failure(f"{error}\n{error.details}".rstrip(), ExitCode.JOB_FAILED) from error
    except expected as error:
        raise Failure(error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the OSError of a file or folder that cannot be written into a `Failure`."""
    try:
        yield
    except OSError as error:
        # A full disk names no file.
        raise Failure(f"{error.filename or path}: cannot be written: {error.strerror or error}") from error


def console() -> Console:
    """Return a console on standard output. The terminal wraps long lines; tables in a file are 120 wide."""
    plain = Console(highlight=False, soft_wrap=True)
    return plain if plain.is_terminal else Console(highlight=False, soft_wrap=True, width=120)


def say_unfinished(runs: Sequence[Run]) -> None:
    """Print to standard error how far each unfinished run is read."""
    for run in runs:
        if run.unfinished:
            click.echo(f"note: {run.unfinished}", err=True)
