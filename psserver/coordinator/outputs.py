"""What the coordinator asks its shell to do: append to the log, send a worker a notice."""

from pswire.decisions.entries import Apply, Entry
from pswire.protocol import Event
from pswire.values import value


class JoinRefused(ValueError):
    """A worker cannot become a member; the text says why."""


class JobOver(JoinRefused):
    """The job has succeeded: a worker that comes now, or was started again, has nothing left to do."""


class JobStopped(JoinRefused):
    """The job has ended without success: what comes back to its servers may find it begun again."""


class JoinDeferred(RuntimeError):
    """Nobody can become a member at this moment, but soon."""


@value
class Record:
    """Append `entry` to the decision log as number `index`, and have every shard execute it."""

    index: int
    t: float
    entry: Entry


@value
class Send:
    """Send `notice` to this life of a worker."""

    worker: str
    incarnation: int
    notice: Event


@value
class Trial:
    """Ask every shard whether the update that `update` would record is finite, and answer `Coordinator.tried`.

    Until then nothing is decided. `number`: of the trial. All entries that were recorded before concern it.
    """

    number: int
    update: Apply


Output = Record | Send | Trial
"""What a step asks its caller to do, in this order."""
