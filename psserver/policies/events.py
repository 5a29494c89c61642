"""Events that a policy receives: frozen, in order, without tensors. Time is a number in an event."""

from pswire.values import value


@value
class Join:
    """A worker takes part from now on. `rank` orders workers; it is unique among the present."""

    worker: str
    rank: int


@value
class Leave:
    """A worker is gone without finishing. Its open tickets are closed by the coordinator."""

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

    `t`: seconds since the job began, in whole microseconds, as the decision
    log has it: so that events read from a log equal those that the policy received.
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
    """The update that the last step decided is not made: its result would not be finite.

    Its contributions, `tickets`, are dropped, and what the policy decided behind the update is not carried out.
    No other event came in between. Only a policy that says `retracts` receives it.
    """

    tickets: tuple[int, ...]


Event = Join | Leave | Done | Ready | Commit | Abandon | Refused
"""What a policy receives."""
