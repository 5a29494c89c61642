"""Events of a policy: frozen values in order, without tensors. Time is a field of an event.

`t` of every event: seconds since the job began, rounded to whole microseconds as in the decision log, so that a
replayed event equals the one that the policy received.
"""

from dataclasses import field

from pswire.values import value


@value
class Join:
    """A worker takes part from now on. `rank` orders workers; no two present workers share one."""

    worker: str
    rank: int
    t: float = field(default=0.0, repr=False)


@value
class Leave:
    """A worker left before its data ended. The coordinator closes its open tickets."""

    worker: str
    reason: str
    t: float = field(default=0.0, repr=False)


@value
class Done:
    """A worker has no more data. It stays a member, but nothing waits for it any more."""

    worker: str
    t: float = field(default=0.0, repr=False)


@value
class Ready:
    """A worker is idle and asks to start the unit of work named `ticket`."""

    worker: str
    ticket: int
    t: float = field(default=0.0, repr=False)


@value
class Commit:
    """The contribution of a granted ticket exists on every shard. At most one per ticket."""

    worker: str
    ticket: int
    samples: int
    loss: float
    norm: float
    t: float = 0.0


@value
class Abandon:
    """A granted ticket will not be used; its worker asks again or is done."""

    worker: str
    ticket: int
    reason: str
    t: float = field(default=0.0, repr=False)


@value
class Timer:
    """The timer with this tag is due. It is set no more. `t` is never before the time for which it was set."""

    tag: str
    t: float


def microseconds(t: float) -> int:
    """Return the time of an event in whole microseconds, as `SetTimer` takes it."""
    return round(t * 1e6)


Event = Join | Leave | Done | Ready | Commit | Abandon | Timer
"""Any event."""
