"""Events of a policy: frozen values in order, without tensors. Time is a field of an event."""

from pswire.values import value


@value
class Join:
    """A worker takes part from now on. `rank` orders workers; no two present workers share one."""

    worker: str
    rank: int


@value
class Leave:
    """A worker left before its data ended. The coordinator closes its open tickets."""

    worker: str
    reason: str


@value
class Done:
    """A worker has no more data. It stays a member, but nothing waits for it any more."""

    worker: str


@value
class Ready:
    """A worker is idle and asks to start the unit of work named `ticket`."""

    worker: str
    ticket: int


@value
class Commit:
    """The contribution of a granted ticket exists on every shard. At most one per ticket.

    `t`: seconds since the job began, rounded to whole microseconds as in the decision log, so that a replayed event
    equals the one that the policy received.
    """

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


@value
class Refused:
    """The shards refused the update of the last step: its result would not be finite.

    Its contributions, `tickets`, are dropped, and the decisions after the update are not carried out. No other event
    came in between. Only a policy with `retracts` receives this event.
    """

    tickets: tuple[int, ...]


Event = Join | Leave | Done | Ready | Commit | Abandon | Refused
"""Any event."""
