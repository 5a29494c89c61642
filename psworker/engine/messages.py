"""What a worker sends to the coordinator (`Request`) and receives from it (`Event`).

The meaning of each message is that of its namesake in protos/pswire/v1/coordinator.proto.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """A dataclass with slots that the type checker takes for frozen and Python does not: Python's own frozen
    dataclasses take four times as long to make, and a simulated cluster makes 50,000 messages a second."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


# Sent


@message
class Ready:
    """The worker asks for its next ticket. `holding`: the ticket that it works on meanwhile, 0 for none."""

    holding: int = 0


class Times(NamedTuple):
    """What a worker did with the time of one ticket, in seconds; `before` is None where there was no such time."""

    pull: float
    compute: float
    before: float | None = None


@message
class Commit:
    """Every shard has acknowledged the ticket's payload, with these `receipts` in task order.

    `samples`: over how many the payload was averaged. `ready`: the worker asks for its next ticket as well.
    `learning_rate`: the optimizer's, from this contribution on; None: as before.
    `unit_ends`: the ticket's work unit has no more parts.
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

    def measured(self, times: Times | None, receipts: tuple[bytes, ...] = ()) -> "Commit":
        """With these. `dataclasses.replace` does the same in four times the time, and this is on every step's path."""
        facts = (self.ticket, self.batch, self.samples, self.loss, self.ready)
        return Commit(*facts, times, receipts, self.learning_rate, self.unit_ends)


@message
class Abandon:
    """The ticket will not be used. `unit_ends`: because its work unit had ended before its part."""

    ticket: int
    reason: str
    unit_ends: bool = False


@message
class Done:
    """There is no more data here. `ends`: why the whole job is to end, with success; empty where it is not to."""

    ends: str = ""


@message
class Leave:
    """The worker goes, before the job is over."""

    reason: str


@message
class Report:
    """Metrics of `version`, for the run's summary."""

    version: int
    metrics: Mapping[str, float] = field(hash=False)


# Received


@message
class UnitPart:
    """What a ticket takes of the job's work units: part 0, 1, ... of `unit` in `epoch`."""

    epoch: int
    unit: int
    part: int


@message
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
    received_at: float = field(default=0.0, compare=False)
    part: UnitPart | None = None


@message
class Cancel:
    """The ticket is no longer valid."""

    ticket: int
    reason: str


@message
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


@message
class Stop:
    """The job is over at `version`. `evaluate`: this worker is asked to evaluate that version and report."""

    reason: str
    version: int
    success: bool
    evaluate: bool
    index: int


@message
class Refusal:
    """A message was refused. `fatal`: the whole session is."""

    message: str
    fatal: bool = False
    ticket: int = 0


Request = Ready | Commit | Abandon | Done | Leave | Report
"""What a worker sends on its control stream."""

Event = Grant | Cancel | Disposition | Stop | Refusal
"""What a worker receives on its control stream."""
