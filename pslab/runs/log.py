"""The decision log as typed facts: one dataclass per kind of entry, read from one JSON object per line.

Reading is strict about what an entry must carry and ignores extra keys, so a newer server's log
stays readable. A line that cannot be read becomes `Malformed`, never an exception: a check reports
on the rest of the log too. This is the only module that parses decision logs.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

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


# Looked up once: that takes longer than to read an entry.
_HINTS: Mapping[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in (*KINDS.values(), Part)}


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


class _Problem(ValueError):
    pass


def read(lines: Iterable[str]) -> Iterator[Entry | Malformed]:
    """Entries of a log, one per line, lazily; blank lines are malformed like any other."""
    for number, text in enumerate(lines, start=1):
        index: int | None = None
        try:
            record = _record(text)
            if isinstance(record.get("i"), int):
                index = record["i"]
            yield _entry(number, record)
        except _Problem as problem:
            yield Malformed(number, index, str(problem))


def _record(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise _Problem(f"contains {constant}, which is not JSON; a NaN is written as null")

    try:
        record = json.loads(text, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError) as error:
        cut = "" if text.endswith("\n") else " (the line has no end: was the file cut off here?)"
        raise _Problem(f"is not a JSON object: {error}{cut}") from None
    if not isinstance(record, dict):
        raise _Problem(f"expected a JSON object, got {text.strip()[:40]!r}")
    return record


def _entry(line: int, record: dict[str, Any]) -> Entry:
    index = _value(record, "i", int)
    t = _value(record, "t", float)
    kind = _value(record, "kind", str)
    if kind not in KINDS:
        raise _Problem(f"unknown kind {kind!r}; known kinds are {', '.join(KINDS)}")
    fact = _build(KINDS[kind], record, f"{kind} entry")
    return Entry(line, index, t, kind, fact, record)


def _build(kind: type[Any], record: Mapping[str, Any], where: str) -> Any:
    hints = _HINTS[kind]
    values = {}
    for field in fields(kind):
        if field.name not in record and field.default is not MISSING:
            continue
        values[field.name] = _value(record, field.name, hints[field.name], where)
    return kind(**values)


def _value(record: Mapping[str, Any], key: str, expected: Any, where: str = "entry") -> Any:
    if key not in record:
        raise _Problem(f"{where} has no {key!r}")
    value = record[key]
    if expected == tuple[Part, ...]:
        return _parts(value, where)
    if expected == tuple[str, ...]:
        return _words(value, key, where)
    if (expected in (int | None, float | None)) and value is None:
        return None
    if not _fits(value, expected):
        raise _Problem(f"{where}: {key} should be {_described(expected)}, got {json.dumps(value)[:60]}")
    return value


def _words(value: Any, key: str, where: str) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        raise _Problem(f"{where}: {key} should be a list of strings, got {json.dumps(value)[:60]}")
    return tuple(value)


def _fits(value: Any, expected: Any) -> bool:
    if expected in (int, int | None):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if expected in (float, float | None):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if expected in (str, bool):
        return isinstance(value, expected)
    return isinstance(value, dict)


def _described(expected: Any) -> str:
    names: dict[Any, str] = {
        int: "a whole number >= 0",
        float: "a finite number",
        str: "a text",
        bool: "true or false",
    }
    names |= {int | None: names[int], float | None: "a finite number or null"}
    return names.get(expected, "an object")


def _parts(value: Any, where: str) -> tuple[Part, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(part, dict) for part in value):
        raise _Problem(f"{where}: parts should be a list of objects, got {json.dumps(value)[:60]}")
    return tuple(_build(Part, part, f"part {n} of the {where}") for n, part in enumerate(value))
