"""The base of all entries of the decision log, and the kinds about tickets, from a grant to a contribution's fate."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from psserver.decisions import orders
from psserver.decisions.records import MICROSECONDS, LogRecord, about, record


class LogEntry(LogRecord, ABC):
    """The fields that every entry has besides its own."""

    __slots__ = ()

    # The event of this name in a server's own log (`pswire.logs.events`); "": the entry is not logged there.
    event: ClassVar[str] = ""

    @abstractmethod
    def sentence(self) -> str:
        """Say what happened, without the time, and without the worker that readers put in front."""

    def order(self, folded: set[int]) -> orders.Order:
        """Return the order to shards; here none. `folded`: tickets summed since the last update, kept up to date."""
        return orders.NOTE


@record
class Initialise(LogEntry):
    """A worker may push the variables' initial values."""

    worker: str = about("the worker")
    ticket: int = about("the ticket")

    def sentence(self) -> str:
        return f"is asked for the initial values, ticket {self.ticket}"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Hold(self.ticket, 0, initialise=True, worker=self.worker)


@record
class Install(LogEntry):
    """A ticket's payload is the model's version 0."""

    worker: str = about("the worker whose values they are")
    ticket: int = about("of the payload")
    version: int = about("always 0", default=0, always=True)

    def sentence(self) -> str:
        return "the initial values are version 0"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Install(self.ticket)


@record
class Grant(LogEntry):
    """A worker may pull a version and push one contribution."""

    worker: str = about("the worker")
    ticket: int = about("of the contribution")
    version: int = about("the version to pull")
    turn: int | None = about("place in the order of summation, if that is fixed", default=None)
    ahead: bool = about("the worker held another open ticket", default=False)
    epoch: int | None = about("epoch of its work unit, if the job deals them", default=None)
    unit: int | None = about("number of its work unit in the epoch", default=None)
    part: int | None = about("part of the unit", default=None)

    def sentence(self) -> str:
        return f"gets ticket {self.ticket} for version {self.version}" + (", ahead" if self.ahead else "")

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Hold(self.ticket, self.version, self.turn, worker=self.worker)


@record
class Commit(LogEntry):
    """A contribution exists: all servers hold its payload."""

    worker: str = about("the worker")
    ticket: int = about("of the payload")
    batch: int = about("number of its last batch in the worker's data")
    samples: int = about("number of samples that it is averaged over")
    loss: float = about("mean over its samples; null if not finite", null=True)
    norm: float = about(
        "L2 norm of the gradient that the servers received, in six digits; null if not finite", null=True
    )
    pull: float | None = about(
        "seconds that the worker waited for the weights", default=None, digits=MICROSECONDS
    )
    compute: float | None = about("seconds that it computed", default=None, digits=MICROSECONDS)
    before: float | None = about("seconds that it worked without a ticket", default=None, digits=MICROSECONDS)
    ends: bool = about("its work unit has no more parts", default=False)
    residual: int | None = about(
        "for a codec with error feedback: the ticket whose commit produced the residual of this payload",
        default=None,
    )

    def sentence(self) -> str:
        loss = f", loss {self.loss:.4g}" if math.isfinite(self.loss) else ""
        return f"commits ticket {self.ticket}: {self.samples} samples{loss}"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Seal(self.ticket)


@record
class Rate(LogEntry):
    """A worker's script has set the learning rate; the `lr_scale` of each following `apply` includes that factor."""

    event = "rate_set"

    worker: str = about("the worker, with whose commit it came")
    learning_rate: float = about("the rate from here on")
    scale: float = about("the rate divided by the job's initial rate")

    def sentence(self) -> str:
        return f"sets the learning rate to {self.learning_rate:.4g}"


@record
class Fold(LogEntry):
    """A contribution is added to the sum of the coming update."""

    ticket: int = about("of the contribution")
    factor: float = about("factor of the contribution")
    compensation: float = about("strength of the compensator", default=0.0)

    def sentence(self) -> str:
        return f"ticket {self.ticket} is added to the coming update, factor {self.factor:.3g}"

    def order(self, folded: set[int]) -> orders.Order:
        folded.add(self.ticket)
        return orders.Fold(self.ticket, self.factor, self.compensation)


@record
class Part(LogRecord):
    """One contribution of an update."""

    ticket: int = about("of the contribution")
    worker: str = about("the worker")
    base: int = about("the version that it was computed from")
    staleness: int = about("versions between `base` and the one that the update starts from")
    weight: float = about("final: `factor` times the update's `scale`")
    factor: float = about("factor of the contribution in the sum")
    compensation: float = about("strength of the compensator", default=0.0)


@record
class Apply(LogEntry):
    """An update makes a version from the contributions in the sum."""

    version: int = about("the version that it makes")
    scale: float = about("factor of the sum")
    lr_scale: float = about(
        "factor of the learning rate: the policy's, times that of the newest `rate`, times that of the newest `policy`"
    )
    parts: tuple[Part, ...] = about("its contributions")

    def sentence(self) -> str:
        parts = ", ".join(
            f"{part.worker}'s ticket {part.ticket} (staleness {part.staleness}, weight {part.weight:.3g})"
            for part in self.parts
        )
        scaled = "" if self.lr_scale == 1 else f", learning rate × {self.lr_scale:.3g}"
        return f"version {self.version} is made of {parts}{scaled}"

    def order(self, folded: set[int]) -> orders.Order:
        update = self.update(folded)
        folded.clear()
        return update

    def update(self, folded: set[int]) -> orders.Apply:
        """Return the order alone, with the parts that are not in the sum yet."""
        late = tuple(
            [orders.Fold(p.ticket, p.factor, p.compensation) for p in self.parts if p.ticket not in folded]
        )
        return orders.Apply(self.version, self.scale, self.lr_scale, late)


@record
class Nonfinite(LogEntry):
    """Elements of a version keep their old values, because their new ones would not be finite."""

    event = "nonfinite"

    version: int = about("the version, which is newest or has become an older one")
    kept: int = about("number of elements, on all servers")
    variable: str = about("the variable with most of them")
    workers: tuple[str, ...] = about("whose contributions it is made of, which were finite", default=())

    def sentence(self) -> str:
        came = (
            f"; its contributions, which were finite, came from {', '.join(self.workers)}"
            if self.workers
            else ""
        )
        kept = f"{self.kept} elements keep their old values, most of them of {self.variable}"
        if self.kept == 1:
            kept = f"an element of {self.variable} keeps its old values"
        return f"version {self.version}: {kept}, because the new ones would not be finite{came}"


@record
class Drop(LogEntry):
    """A committed contribution will never be applied."""

    worker: str = about("the worker")
    ticket: int = about("of the contribution")
    staleness: int = about("its age in versions")
    reason: str = about("the reason")
    skipped: bool = about("its part of a work unit is not dealt again", default=False)

    def sentence(self) -> str:
        return f"ticket {self.ticket} is dropped, {self.reason}; staleness {self.staleness}"

    def order(self, folded: set[int]) -> orders.Order:
        if self.ticket in folded:
            # Its payload is in the sum, which all others in it leave with it.
            folded.clear()
            return orders.Discard()
        return orders.Release(self.ticket)


@record
class Cancel(LogEntry):
    """The coordinator closes an open ticket."""

    worker: str = about("the worker")
    ticket: int = about("the ticket")
    reason: str = about("the reason")

    def sentence(self) -> str:
        return f"ticket {self.ticket} is cancelled: {self.reason}"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Release(self.ticket)


@record
class Abandon(LogEntry):
    """A worker gives back an open ticket."""

    worker: str = about("the worker")
    ticket: int = about("the ticket")
    reason: str = about("the reason")
    skipped: bool = about(
        "its part of a work unit is not dealt again: it was abandoned too often, or the unit had ended before it",
        default=False,
    )
    ends: bool = about("its work unit had ended before this part", default=False)

    def sentence(self) -> str:
        return f"gives ticket {self.ticket} up: {self.reason}"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Release(self.ticket)
