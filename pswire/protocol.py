"""The vocabulary of the protocol: what a worker sends to the coordinator (`Request`) and receives from it (`Event`).

Workers, coordinator, simulator and checks share it; `pswire.message_codec` makes messages of it.

The meaning of each message is that of its namesake in protos/pswire/v1/coordinator.proto.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final, NamedTuple

from pswire.values import value

# Sent


@value
class Ready:
    """The worker asks for its next ticket. `holding`: the ticket that it works on meanwhile, 0 for none."""

    holding: int = 0


class Times(NamedTuple):
    """Where a ticket's time went, in seconds by the worker's clock; None where it does not say.

    `pull`: it waited for the weights; `compute`: it computed; `before`: it worked without a ticket before it asked. The
    rest between grant and commit was on the way.
    """

    pull: float | None
    compute: float | None
    before: float | None = None


UNTOLD: Final = Times(None, None)


@value
class Commit:
    """Every shard has acknowledged the ticket's payload, with these `receipts` in task order.

    `samples`: over how many the payload was averaged. `ready`: the worker asks for its next ticket as well.
    `learning_rate`: the optimizer's, from this contribution on; None: as before.
    `unit_ends`: the ticket's work unit has no more parts. `residual`: the ticket whose commit left behind what the
    worker's codec encoded this payload with; None: none did.
    """

    ticket: int
    batch: int = 0
    samples: int = 0
    loss: float = math.nan
    ready: bool = False
    times: Times | None = None
    receipts: tuple[bytes, ...] = ()
    learning_rate: float | None = None
    unit_ends: bool = False
    residual: int | None = None

    def measured(
        self, times: Times | None, receipts: tuple[bytes, ...] = (), residual: int | None = None
    ) -> "Commit":
        """With these. `dataclasses.replace` does the same in four times the time, and this is on every step's path."""
        facts = (self.ticket, self.batch, self.samples, self.loss, self.ready)
        return Commit(*facts, times, receipts, self.learning_rate, self.unit_ends, residual)


@value
class Abandon:
    """The ticket will not be used. `unit_ends`: because its work unit had ended before its part."""

    ticket: int
    reason: str
    unit_ends: bool = False


@value
class Done:
    """There is no more data here. `ends`: why the whole job is to end, with success; empty where it is not to."""

    ends: str = ""


@value
class Leave:
    """The worker goes, before the job is over."""

    reason: str


@value
class Report:
    """Metrics of `version`, for the run's summary."""

    version: int
    metrics: Mapping[str, float] = field(hash=False)


# Received


@value
class UnitPart:
    """What a ticket takes of the job's work units: part 0, 1, ... of `unit` in `epoch`."""

    epoch: int
    unit: int
    part: int


@value
class Grant:
    """Permission for one unit of work, starting from `version`.

    `index`: the grant's number in the decision log. `initialise`: push the variables' initial values instead of a
    gradient. `received_at`: seconds on the clock of the program that received it. `part`: what to work on, in a job
    that deals work units.
    """

    ticket: int
    version: int
    index: int
    initialise: bool = False
    part: UnitPart | None = None
    received_at: float = field(default=0.0, compare=False)

    def received(self, at: float) -> "Grant":
        """Return the same, received at that time."""
        return Grant(self.ticket, self.version, self.index, self.initialise, self.part, at)


@value
class Cancel:
    """The ticket is no longer valid."""

    ticket: int
    reason: str


@value
class Disposition:
    """What became of a commit. `fate`: "applied", "dropped" or "pending"; after the loss of an incarnation "unknown".

    `version`: the one that it became part of.
    """

    ticket: int
    fate: str
    version: int = 0
    staleness: int = 0
    weight: float = 0.0
    reason: str = ""

    @property
    def cancelled(self) -> bool:
        """Its ticket was cancelled before the commit came, so no policy has seen the contribution."""
        return self.fate == "dropped" and self.reason == "cancelled"


@value
class Stop:
    """The job is over at `version`. `evaluate`: this worker is asked to evaluate that version and report.

    `index`: the stop's number in the decision log; 0 when the job itself goes on.
    """

    reason: str
    version: int
    success: bool
    index: int
    evaluate: bool = False


@value
class Refusal:
    """A message was refused. `fatal`: the whole session is."""

    message: str
    fatal: bool = False
    ticket: int = 0


Request = Ready | Commit | Abandon | Done | Leave | Report
"""What a worker sends on its control stream."""

Event = Grant | Cancel | Disposition | Stop | Refusal
"""What a worker receives on its control stream."""


def received(event: Event, at: float) -> Event:
    """Return the event as a worker of the same process receives it at that time."""
    return event.received(at) if isinstance(event, Grant) else event
