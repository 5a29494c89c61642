"""Strict reading of settings, and the exception of this package."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from pswire.knobs import KnobError, read
from pswire.nearest import did_you_mean

Made = TypeVar("Made")


class OptimizerError(ValueError):
    """A configuration or a call that no optimizer can honour.

    The message says what was expected, what was given, and what to do. It is raised before any array is touched, so
    state is unchanged.
    """


def knobs_read(made: type[Made], table: Mapping[str, object], owner: str, also: Iterable[str] = ()) -> Made:
    """Read float32 settings with `pswire.knobs.read`. Raises OptimizerError."""
    try:
        return read(made, table, owner, also=also, single=True)
    except KnobError as error:
        raise OptimizerError(str(error)) from error


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the message for a name that is not among `known`."""
    return f"unknown {what} {name!r}{did_you_mean(str(name), known)}"
