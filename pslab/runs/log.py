"""The decision log as typed facts: one dataclass per kind of entry, and the line that holds it.

A fact has what every entry of its kind must carry; a newer server's log may have more.
`pslab.runs.reader` makes them of a log's lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class JobEntry:
    """Always entry 0: what was run."""

    job: str
    policy: dict[str, Any]
    optimizer: dict[str, Any]
    servers: int
    workers: int
    seed: int
    format: int
    tensors: dict[str, Any] | None = None
    local: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Join:
    worker: str
    incarnation: int
    rank: int
    forgets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    units: int
    epochs: int
    length: int = 0
    data: str = ""
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    worker: str


@dataclass(frozen=True, slots=True)
class Start:
    pass


@dataclass(frozen=True, slots=True)
class Initialise:
    worker: str
    ticket: int


@dataclass(frozen=True, slots=True)
class Install:
    ticket: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    worker: str
    ticket: int
    version: int
    turn: int | None = None
    ahead: bool = False
    # Of the job's work units; None in a job that deals none.
    epoch: int | None = None
    unit: int | None = None
    part: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    worker: str
    ticket: int
    batch: int
    samples: int
    loss: float | None
    norm: float | None
    # Seconds, as the worker reported them; None where it did not.
    pull: float | None = None
    compute: float | None = None
    before: float | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate from here on: `scale` times the one that the job began with."""

    worker: str
    learning_rate: float
    scale: float


@dataclass(frozen=True, slots=True)
class Fold:
    ticket: int
    factor: float
    compensation: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    ticket: int
    worker: str
    base: int
    staleness: int
    weight: float
    factor: float
    compensation: float = 0.0


@dataclass(frozen=True, slots=True)
class Apply:
    """`version` is the new one; a part's staleness counts from the one before it."""

    version: int
    scale: float
    lr_scale: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """`version` was not made of these parts: it would not be finite."""

    version: int
    scale: float
    lr_scale: float
    parts: tuple[Part, ...]


# Why contributions of a refused update are dropped.
NONFINITE = "nonfinite update"


@dataclass(frozen=True, slots=True)
class Drop:
    worker: str
    ticket: int
    staleness: int
    reason: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    worker: str
    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class Abandon:
    worker: str
    ticket: int
    reason: str
    skipped: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    worker: str


@dataclass(frozen=True, slots=True)
class Back:
    worker: str


@dataclass(frozen=True, slots=True)
class Leave:
    worker: str
    reason: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    worker: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    version: int


@dataclass(frozen=True, slots=True)
class Restore:
    job: str
    version: int
    servers: int
    rolled_back: int


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str
    version: int
    success: bool


Fact = (
    JobEntry | Join | Work | Resume | Start | Initialise | Install | Grant | Commit | Rate | Fold | Apply | Refuse
    | Drop
    | Cancel | Abandon | Lost | Back | Leave | Done | Checkpoint | Restore | Stop
)  # fmt: skip

KINDS: Mapping[str, type[Any]] = {"job": JobEntry} | {
    kind.__name__.lower(): kind
    for kind in (
        Join, Work, Resume, Start, Initialise, Install, Grant, Commit, Rate, Fold, Apply, Refuse, Drop,
        Cancel, Abandon, Lost, Back, Leave, Done, Checkpoint, Restore, Stop,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log that could be read. `line` counts from 1, `i` is the entry's own index, `t` in seconds.

    `record`: the JSON object itself, with the keys that `fact` does not have.
    """

    line: int
    i: int
    t: float
    kind: str
    fact: Fact
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line of the log that could not be read, and why. `i` where it is known."""

    line: int
    i: int | None
    problem: str
