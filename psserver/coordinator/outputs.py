"""Outputs of the coordinator: append to the log, notify a worker, answer whoever gave the input."""

from collections.abc import Sequence
from typing import Literal

from psserver.decisions.entries import Entry
from pswire.protocol import Event
from pswire.values import value

Kind = Literal["refused", "over", "stopped"]


@value
class Record:
    """Append `entry` to the decision log as number `index`, and have every shard execute it."""

    index: int
    t: float
    entry: Entry


@value
class Send:
    """Send `notice` to this incarnation of a worker."""

    worker: str
    incarnation: int
    notice: Event


@value
class Joined:
    """The answer to a `JoinAsked`: the worker is this member."""

    worker: str
    incarnation: int
    rank: int


@value
class Declined:
    """The answer to a `JoinAsked`, `WorkDeclared` or `ChangeAsked` that cannot be, and why. Nothing has changed.

    `kind`: "over" for a join after the job has succeeded, which finds nothing to do; "stopped" after it has ended
    without success, and its servers may begin it again.
    """

    reason: str
    kind: Kind = "refused"


Output = Record | Send | Joined | Declined
"""Any output. The caller carries them out in order."""


def declined(outputs: Sequence[Output]) -> Declined | None:
    """Return the answer that refuses the input; None if there is none."""
    return next((each for each in outputs if isinstance(each, Declined)), None)
