"""The kinds of entries of the decision log.

A kind is declared here and nowhere else: its fields, the sentence that people read, and the order it gives to shards.
JSON, strict reading and the table in the documents derive from it (`psserver.decisions.records`). A new kind takes
three places: a class here, in `Entry`; the part of the coordinator that records it; and a rule in `pslab/check`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, get_args

from psserver.decisions import orders
from psserver.decisions.records import MICROSECONDS, LogRecord, about, record

FORMAT: Final = 2
"""The format of the log; a reader refuses any other."""
READ_BY: Final[Mapping[int, str]] = {1: "release 0.2.0, or an unreleased build between it and this one,"}
"""What reads an older format."""

# Why contributions are dropped that waited for an update under a policy which another one has replaced.
REPLACED: Final = "policy replaced"
# State that a worker keeps from commit to commit, and no server has: the moments of its local rule,
LOCAL_RULE: Final = "local rule"
# and the residuals of its codec.
CODEC: Final = "codec"


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
class Job(LogEntry):
    """Always entry 0: what was agreed before anything happened."""

    job: str = about("name of the job")
    policy: Mapping[str, Any] = about("the policy's name and knobs")
    servers: int = about("number of servers")
    workers: int = about("number of workers")
    seed: int = about("seed of all random numbers")
    format: int = about("format of the log", default=FORMAT, always=True)
    tensors: Mapping[str, Any] | None = about(
        "the policy's declarations of what shards compute (TensorParts.config)", default=None
    )
    local: Mapping[str, Any] | None = about(
        "the rule of workers between two pushes, unless one gradient", default=None
    )
    min_workers: int | None = about("number of workers that the start waits for, unless all", default=None)

    def sentence(self) -> str:
        of = f"{self.servers} server{'s' if self.servers > 1 else ''} and {self.workers} workers"
        return f"job {self.job}: {_named(self.policy)}, {of}, seed {self.seed}"


def _named(config: Mapping[str, Any]) -> str:
    knobs = ", ".join(f"{key} {value}" for key, value in config.items() if key != "name")
    return f"{config.get('name')} ({knobs})" if knobs else str(config.get("name"))


@record
class Join(LogEntry):
    """A worker becomes a member."""

    worker: str = about("its name")
    incarnation: int = about("its incarnation, counted from 0")
    rank: int = about("its number among the workers, from 0")
    forgets: tuple[str, ...] = about(
        "state that was lost with its former process: `local rule`, `codec`; only if it had committed before",
        default=(),
    )
    computes: str = about("the framework and devices that it computes with, if it says", default="")

    def sentence(self) -> str:
        lost = f"; what its {' and its '.join(self.forgets)} remembered is lost" if self.forgets else ""
        uses = f", computes with {self.computes}" if self.computes else ""
        return f"joins as incarnation {self.incarnation}{uses}{lost}"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Admit(self.worker, self.incarnation)


@record
class Work(LogEntry):
    """The job deals work units from here on; with 0 units it does not."""

    event = "work_units"

    units: int = about("per epoch")
    epochs: int = about("number of epochs")
    length: int = about("parts of a unit; 0: unknown until the data ends")
    data: str = about("the data, as workers describe it", default="")
    apart: bool = about(
        "an epoch's units are dealt only after those of the epoch before have counted", default=False
    )

    def sentence(self) -> str:
        return f"{self.units} units of work are dealt, in each of {self.epochs} epochs"


@record
class Resume(LogEntry):
    """A work unit came back: a worker that was done for lack of one takes part again."""

    event = "worker_resumed"

    worker: str = about("the worker")

    def sentence(self) -> str:
        return "has data again: a work unit came back"


@record
class Start(LogEntry):
    """Enough workers are ready: the policy decides from here on. Each phase of a job begins with one."""

    workers: int = about("number of ready workers")

    def sentence(self) -> str:
        return "training starts"


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
class Model(LogEntry):
    """What the job trains, settled by the first initial values: always right before the install entry."""

    variables: str = about("fingerprint of the model's variables and tables on these servers")
    optimizer: Mapping[str, Any] = about("the optimizer's name and knobs")

    def sentence(self) -> str:
        named = f", variables {self.variables[:12]}" if self.variables else ""
        return f"the model is settled: {_named(self.optimizer)}{named}"


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


@record
class Lost(LogEntry):
    """The connection of a worker broke; it may still come back."""

    worker: str = about("the worker")

    def sentence(self) -> str:
        return "has lost its connection"


@record
class Back(LogEntry):
    """A worker whose connection broke is back in time."""

    event = "connection_back"

    worker: str = about("the worker")

    def sentence(self) -> str:
        return "is back"


@record
class Leave(LogEntry):
    """A worker is no longer a member."""

    event = "worker_left"

    worker: str = about("the worker")
    reason: str = about("the reason")

    def sentence(self) -> str:
        return f"leaves: {self.reason}"

    def order(self, folded: set[int]) -> orders.Order:
        # Its tickets have entries of their own.
        return orders.Dismiss(self.worker)


@record
class Done(LogEntry):
    """A worker has no more data."""

    event = "worker_done"

    worker: str = about("the worker")

    def sentence(self) -> str:
        return "has no more data"


@record
class Timer(LogEntry):
    """A timer of the policy fires; its decisions follow."""

    tag: str = about("the policy's name of the timer")
    at: int = about("when it was due, in microseconds of the job; the entry's time is when it fired")

    def sentence(self) -> str:
        return f"timer {self.tag} fires"


@record
class Policy(LogEntry):
    """Another policy decides from here on, with no contribution waiting for an update. Tickets that are open are judged
    by it at their commits."""

    event = "policy_changed"

    policy: Mapping[str, Any] = about("the policy's name and knobs")
    former: Mapping[str, Any] = about("those of the policy before it")
    version: int = about("the newest version; the next is the first that the policy makes")
    by: str = about("who asked for it: an operator, or `plan` for the experiment file")
    why: str = about("the reason that was given", default="")
    rate: float | None = about(
        "factor of the learning rate that changes of the policy have set, if it is not 1", default=None
    )

    def sentence(self) -> str:
        cause = f": {self.why}" if self.why else ""
        rate = "" if self.rate is None else f", learning rate × {self.rate:.3g}"
        return (
            f"policy {_named(self.policy)} takes over from {_named(self.former)}, by {self.by}{cause}{rate}"
        )


@record
class Settled(LogEntry):
    """The last ticket that was open when the policy changed has its fate: the policy's guarantee holds in full."""

    event = "policy_settled"

    version: int = about("the newest version")

    def sentence(self) -> str:
        return "the policy has settled: no ticket is left from before it"


@record
class Checkpoint(LogEntry):
    """All state after this entry is to be saved. Whether the disks took it is known from the store alone."""

    version: int = about("the newest version")

    def sentence(self) -> str:
        return f"version {self.version} is kept in a checkpoint"

    def order(self, folded: set[int]) -> orders.Order:
        return orders.Save(self.version)


@record
class Unsaved(LogEntry):
    """A checkpoint that was ordered failed. The next one is ordered sooner."""

    version: int = about("the version that was to be saved")
    reason: str = about("the reason")

    def sentence(self) -> str:
        return f"version {self.version} is not saved: {self.reason}"


@record
class Restore(LogEntry):
    """New processes continue from the checkpoint before it. A `leave` of every member follows."""

    job: str = about("the job's new name")
    version: int = about("version of the checkpoint")
    servers: int = about("number of servers from here on")
    rolled_back: int = about("number of entries after that checkpoint, which are void")

    def sentence(self) -> str:
        return f"goes on from the checkpoint of version {self.version}, on {self.servers} servers"

    def order(self, folded: set[int]) -> orders.Order:
        # A sum that remains after a stop has only contributions that were dropped.
        return orders.NOTE if folded else orders.Discard()


@record
class Note(LogEntry):
    """An operator's remark."""

    event = "note"

    text: str = about("the remark")

    def sentence(self) -> str:
        return f"note: {self.text}"


@record
class Stop(LogEntry):
    """The job, or a phase of it, ends."""

    reason: str = about("the reason")
    version: int = about("the newest version")
    success: bool = about("whether it succeeded")

    def sentence(self) -> str:
        return f"the job stops at version {self.version}: {self.reason}"

    def order(self, folded: set[int]) -> orders.Order:
        # All that was pending was dropped right before, summed or not.
        folded.clear()
        return orders.NOTE


Entry = (
    Job | Join | Work | Resume | Start | Initialise | Model | Install | Grant | Commit | Rate | Fold | Apply | Nonfinite
    | Drop | Cancel | Abandon | Lost | Back | Leave | Done | Timer | Policy | Settled | Checkpoint | Unsaved | Restore
    | Note | Stop
)  # fmt: skip

KINDS: Final[Mapping[str, type[Entry]]] = {kind.kind: kind for kind in get_args(Entry)}
