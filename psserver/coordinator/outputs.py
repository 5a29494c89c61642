"""Outputs of the coordinator: append to the log, notify a worker, ask the shards."""

from pswire.decisions.entries import Apply, Entry
from pswire.protocol import Event
from pswire.values import value


class JoinRefused(ValueError):
    """A worker cannot become a member, for the reason in the text."""


class JobOver(JoinRefused):
    """The job has succeeded: a worker that joins now has nothing to do."""


class JobStopped(JoinRefused):
    """The job has ended without success: its servers may begin it again."""


class JoinDeferred(RuntimeError):
    """No worker can become a member right now; ask again in a moment."""


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
class Trial:
    """Ask every shard whether the result of `update` is finite, and call `Coordinator.tried` with the answer.

    Until then the policy decides nothing. `number` identifies the trial. A shard must first execute all entries
    recorded before it.
    """

    number: int
    update: Apply


Output = Record | Send | Trial
"""Any output. The caller carries them out in order."""
