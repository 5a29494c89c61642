"""The entries of the decision log: one class per kind. `kind` and the field names are those of decisions.jsonl.

`Entry` is the union of all kinds, so that a type checker sees where one is forgotten.
"""

from collections.abc import Mapping
from typing import Any, Final, get_args

from psserver.coordinator.entries.facts import NO_FACTS as NO_FACTS
from psserver.coordinator.entries.facts import UNTOLD as UNTOLD
from psserver.coordinator.entries.facts import CommitFacts as CommitFacts
from psserver.coordinator.entries.facts import Times as Times
from psserver.coordinator.entries.fields import Fields as Fields
from psserver.coordinator.entries.fields import field_names as field_names
from psserver.coordinator.entries.fields import plain as plain
from psserver.policies.values import value


@value
class Job(Fields):
    """Always entry 0: what was agreed before anything happened."""

    kind = "job"
    job: str
    policy: Mapping[str, object]
    optimizer: Mapping[str, object]
    servers: int
    workers: int
    seed: int
    format: int = 1
    # What the policy says about its parts that see tensors, where it has any (TensorParts.config).
    tensors: Mapping[str, object] | None = None
    # What the policy asks of its workers, unless it is one gradient per ticket.
    local: Mapping[str, object] | None = None
    # How many workers the start waits for, where it is not all of them.
    min_workers: int | None = None


@value
class Join(Fields):
    kind = "join"
    worker: str
    incarnation: int
    rank: int
    # What the worker of that name had kept by itself, and begins anew: `LOCAL_RULE`, `CODEC`. It had committed before.
    forgets: tuple[str, ...] | None = None


# What a worker remembers from commit to commit, and no server has: the moments of its local rule,
LOCAL_RULE: Final = "local rule"
# the residuals of its codec.
CODEC: Final = "codec"


@value
class Work(Fields):
    """The job deals work units: so many per epoch, of `length` parts (0: the data shows it). No units: it does not.

    `apart`: an epoch's units are dealt when those of the epoch before have counted.
    """

    kind = "work"
    units: int
    epochs: int
    length: int
    data: str | None = None
    apart: bool | None = None


@value
class Resume(Fields):
    """A work unit came back: a worker that was done for want of one takes part again."""

    kind = "resume"
    worker: str


@value
class Start(Fields):
    """Enough workers are ready: the policy decides from here on."""

    kind = "start"
    workers: int


@value
class Initialise(Fields):
    """`worker` may push the variables' initial values under `ticket`."""

    kind = "initialise"
    worker: str
    ticket: int


@value
class Install(Fields):
    """The payload of `ticket` is the model's version 0."""

    kind = "install"
    worker: str
    ticket: int
    version: int = 0


@value
class Grant(Fields):
    kind = "grant"
    worker: str
    ticket: int
    version: int
    turn: int | None = None
    # The worker held another open ticket.
    ahead: bool | None = None
    # What the ticket takes of a job's work units, where it has them.
    epoch: int | None = None
    unit: int | None = None
    part: int | None = None


@value
class Commit(Fields):
    kind = "commit"
    worker: str
    ticket: int
    batch: int
    samples: int
    loss: float
    norm: float
    # Those of Times, None where the worker did not say.
    pull: float | None = None
    compute: float | None = None
    before: float | None = None
    # The worker found that its work unit has nothing behind this part.
    ends: bool | None = None

    def _fields(self) -> dict[str, Any]:
        found = Fields._fields(self)
        for name in Times._fields:
            if found.get(name) is not None:
                # As `t`: whole microseconds.
                found[name] = round(found[name], 6)
        return found


@value
class Rate(Fields):
    """From here on the learning rate is `learning_rate`, as `worker` said with its commit: `scale` times the one that
    the job began with. The `lr_scale` of each following Apply has that factor."""

    kind = "rate"
    worker: str
    learning_rate: float
    scale: float


@value
class Fold(Fields):
    kind = "fold"
    ticket: int
    factor: float
    compensation: float | None = None


@value
class AppliedPart(Fields):
    """One contribution of an Apply. `weight` is final: factor * the Apply's scale."""

    kind = "part"
    ticket: int
    worker: str
    base: int
    staleness: int
    weight: float
    factor: float
    compensation: float | None = None


@value
class Apply(Fields):
    """`version` is the one that this update makes. `lr_scale`: the policy's, times that of the newest Rate."""

    kind = "apply"
    version: int
    scale: float
    lr_scale: float
    parts: tuple[AppliedPart, ...]


@value
class Refuse(Fields):
    """Version `version` is not made: of these parts it would not be finite on some server. No server changes.

    A `Drop` of each part, for `NONFINITE`, follows.
    """

    kind = "refuse"
    version: int
    scale: float
    lr_scale: float
    parts: tuple[AppliedPart, ...]


# Why the contributions of a refused update are dropped.
NONFINITE: Final = "nonfinite update"


@value
class Drop(Fields):
    kind = "drop"
    worker: str
    ticket: int
    staleness: int
    reason: str
    # Its part of a work unit is not dealt again.
    skipped: bool | None = None


@value
class Cancel(Fields):
    kind = "cancel"
    worker: str
    ticket: int
    reason: str


@value
class Abandon(Fields):
    kind = "abandon"
    worker: str
    ticket: int
    reason: str
    # Its part of a work unit is not dealt again: it was given up too often, or the unit had ended before it.
    skipped: bool | None = None
    ends: bool | None = None


@value
class Lost(Fields):
    """The connection broke; the worker may still come back."""

    kind = "lost"
    worker: str


@value
class Back(Fields):
    kind = "back"
    worker: str


@value
class Leave(Fields):
    kind = "leave"
    worker: str
    reason: str
    # What the servers keep for this worker alone stays: it is expected back.
    kept: bool | None = None


@value
class Done(Fields):
    kind = "done"
    worker: str


@value
class Stop(Fields):
    kind = "stop"
    reason: str
    version: int
    success: bool


@value
class Checkpoint(Fields):
    """All that is known behind this entry is to be saved. Whether the disks took it, the store says."""

    kind = "checkpoint"
    version: int


@value
class Restore(Fields):
    """New processes go on from the checkpoint that the entry before this one ordered, under the name `job`.

    Nobody of before is a member any more; what is open is cancelled. `rolled_back`: entries that had followed on
    that checkpoint, and are void.
    """

    kind = "restore"
    job: str
    version: int
    servers: int
    rolled_back: int


Entry = (
    Job
    | Join
    | Work
    | Resume
    | Start
    | Initialise
    | Install
    | Grant
    | Commit
    | Rate
    | Fold
    | Apply
    | Refuse
    | Drop
    | Cancel
    | Abandon
    | Lost
    | Back
    | Leave
    | Done
    | Checkpoint
    | Restore
    | Stop
)

KINDS: Final[Mapping[str, type[Entry]]] = {kind.kind: kind for kind in get_args(Entry)}
