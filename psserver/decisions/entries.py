"""The kinds of entries of the decision log: those of the job and its members; `ticket_entries` has those of tickets.

A kind is declared here or there and nowhere else: its fields, the sentence that people read, and the order it gives to
shards. JSON, strict reading and the table in the documents derive from it (`psserver.decisions.records`). A new kind
takes three places: a class, in `Entry`; the part of the coordinator that records it; and a rule in `pslab/check`.
"""

from collections.abc import Mapping
from typing import Any, Final, get_args

from psserver.decisions import orders
from psserver.decisions.records import about, record
from psserver.decisions.ticket_entries import Abandon as Abandon
from psserver.decisions.ticket_entries import Apply as Apply
from psserver.decisions.ticket_entries import Cancel as Cancel
from psserver.decisions.ticket_entries import Commit as Commit
from psserver.decisions.ticket_entries import Drop as Drop
from psserver.decisions.ticket_entries import Fold as Fold
from psserver.decisions.ticket_entries import Grant as Grant
from psserver.decisions.ticket_entries import Initialise as Initialise
from psserver.decisions.ticket_entries import Install as Install
from psserver.decisions.ticket_entries import LogEntry as LogEntry
from psserver.decisions.ticket_entries import Nonfinite as Nonfinite
from psserver.decisions.ticket_entries import Part as Part
from psserver.decisions.ticket_entries import Rate as Rate

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
class Model(LogEntry):
    """What the job trains, settled by the first initial values: always right before the install entry."""

    variables: str = about("fingerprint of the model's variables and tables on these servers")
    optimizer: Mapping[str, Any] = about("the optimizer's name and knobs")
    function: str = about("digest of what the model computes, if a worker tells of it", default="")

    def sentence(self) -> str:
        named = f", variables {self.variables[:12]}" if self.variables else ""
        return f"the model is settled: {_named(self.optimizer)}{named}"


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
