"""The vocabulary of the protocol: what a worker sends to the coordinator (`Request`) and receives from it (`Event`).

Workers, coordinator, simulator and checks share it; `pswire.messages` converts it to messages. Each class has the
meaning of its namesake in protos/pswire/v1/coordinator.proto.
"""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final, NamedTuple

from pswire.values import value

# Sent


@value
class Ready:
    """The worker asks for its next ticket. `holding`: the ticket that it is working on meanwhile, 0 for none."""

    holding: int = 0


class Times(NamedTuple):
    """How a ticket's time was spent, in seconds by the worker's clock; None if the worker does not report it.

    `pull`: waiting for the weights; `compute`: computing; `before`: working without a ticket before asking for one. The
    rest between grant and commit was on the way.
    """

    pull: float | None
    compute: float | None
    before: float | None = None


UNTOLD: Final = Times(None, None)


@value
class Commit:
    """Every shard has acknowledged the ticket's payload, with these `receipts` in task order.

    `samples`: the number that the payload is averaged over. `ready`: the worker also asks for its next ticket.
    `learning_rate`: the optimizer's, from this contribution on; None: unchanged. `unit_ends`: the ticket's work unit
    has no more parts. `residual`: the ticket whose commit produced the residual with which the worker's codec encoded
    this payload; None: no residual.
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
        """Return a copy with these. `dataclasses.replace` takes four times as long, on the path of every step."""
        facts = (self.ticket, self.batch, self.samples, self.loss, self.ready)
        return Commit(*facts, times, receipts, self.learning_rate, self.unit_ends, residual)


@value
class Abandon:
    """The worker will not use the ticket. `unit_ends`: because its work unit had ended before its part."""

    ticket: int
    reason: str
    unit_ends: bool = False


@value
class Done:
    """The worker has no more data. `ends`: why the whole job should end, with success; empty if it should not."""

    ends: str = ""


@value
class Leave:
    """The worker leaves before the job is over."""

    reason: str


@value
class Report:
    """Metrics of `version`, for the run's summary."""

    version: int
    metrics: Mapping[str, float] = field(hash=False)


# Received


@value
class UnitPart:
    """A ticket's share of the job's work units: part 0, 1, ... of `unit` in `epoch`."""

    epoch: int
    unit: int
    part: int


@value
class Grant:
    """Permission for one unit of work, starting from `version`.

    `index`: the grant's number in the decision log. `initialise`: push the variables' initial values instead of a
    gradient. `received_at`: seconds on the receiver's clock. `part`: what to work on, in a job that deals work units.
    """

    ticket: int
    version: int
    index: int
    initialise: bool = False
    part: UnitPart | None = None
    received_at: float = field(default=0.0, compare=False)

    def received(self, at: float) -> "Grant":
        """Return the same grant, received at that time."""
        return Grant(self.ticket, self.version, self.index, self.initialise, self.part, at)


@value
class Cancel:
    """The ticket is no longer valid."""

    ticket: int
    reason: str


@value
class Disposition:
    """The fate of a commit: "applied", "dropped" or "pending"; after the loss of an incarnation "unknown".

    `version`: the version that includes it.
    """

    ticket: int
    fate: str
    version: int = 0
    staleness: int = 0
    weight: float = 0.0
    reason: str = ""

    @property
    def cancelled(self) -> bool:
        """True if the ticket was cancelled before the commit came, so that no policy saw the contribution."""
        return self.fate == "dropped" and self.reason == "cancelled"


@value
class Stop:
    """The job is over at `version`. `evaluate`: this worker should evaluate that version and report.

    `index`: the stop's number in the decision log; 0 if the job itself continues.
    """

    reason: str
    version: int
    success: bool
    index: int
    evaluate: bool = False


@value
class Refusal:
    """A message was refused. `fatal`: the whole session is refused."""

    message: str
    fatal: bool = False
    ticket: int = 0


StreamRequest = Ready | Abandon | Done | Leave | Report
"""What a worker sends on its session stream."""

Request = StreamRequest | Commit
"""What a worker asks of the coordinator. A commit travels with a payload, or in a call of its own."""

Event = Grant | Cancel | Disposition | Stop | Refusal
"""What a worker receives on its session stream, and in answer to a commit."""


def received(event: Event, at: float) -> Event:
    """Return the event as a worker in the same process receives it at that time."""
    return event.received(at) if isinstance(event, Grant) else event
