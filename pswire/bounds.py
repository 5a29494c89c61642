"""What each field of each message may hold: one table, checked before anything acts on a message.

A receiver checks a message as soon as it is parsed. A field beyond its bound
is refused with the field, the bound and what came; nothing has changed then.
Whether a value makes sense (is the ticket open, does the plan fit?) is for
the code that acts on it; the table keeps every message cheap and every number
within what the receiver's own arithmetic can hold.

`tests/pswire/test_bounds.py` holds the table against the protos: a field
without a row fails there.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


class BoundError(ValueError):
    """A field of a message is beyond its bound; the text names both."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    most: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `least` to `most`; NaN and infinities only if `nonfinite`."""

    most: float = math.inf
    least: float = -math.inf
    nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """At most `most` characters; only printable ones if `printable`, and only ASCII if `plain`."""

    most: int
    printable: bool = True
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """At most `most` bytes."""

    most: int


@dataclass(frozen=True, slots=True)
class Many:
    """At most `most` elements (entries of a map). `each`: the bound of an element that is no message."""

    most: int
    each: "Bound | None" = None
    key: Text | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """A message, bounded by its own rows."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A truth value or an enum: its type is its bound; an unknown enum number is refused where it is read."""


Bound = Whole | Real | Text | Data | Many | Nested | Closed


@dataclass(frozen=True, slots=True)
class Row:
    """The bound of one field, and why it is that."""

    message: str
    field: str
    bound: Bound
    why: str


# Counters that every process adds up stay far from 2**63, the range of a signed sum and of a file's numbers.
COUNTER: Final = Whole(2**53 - 1)
COUNTED = "counted one by one; JSON readers hold whole numbers up to 2**53 exactly"
NAME: Final = Text(64)
NAMED = "stands in logs, paths and sentences"
REASON: Final = Text(4000, printable=False)
SAID = "a sentence or a traceback's last lines; escaped where it is printed"
SECRET: Final = Data(64)
PROOF = "a digest or a token of at most 64 bytes"
WORKERS: Final = 2**20
SERVERS: Final = 2**12
VARIABLES: Final = 2**14
RANK: Final = 64
ELEMENTS: Final = 2**40
PAYLOAD: Final = Whole(8 * ELEMENTS)
FLAG: Final = Closed()
SUB: Final = Nested()
PART = "a message with rows of its own"
TYPED = "its type allows nothing else"
FACTOR: Final = Real()
NUMBER = "a finite factor; anything else would make every weight NaN"
SECONDS: Final = Real(1e9, 0.0)
DURATION = "seconds of one ticket; 1e9 are 31 years"
FINGERPRINT: Final = Text(128, plain=True)
HASHED = "a digest in letters and digits; compared in constant time, which takes ASCII only"
JSON: Final = Text(64 * 1024)
CONFIG = "a declarative configuration: names and numbers"


def _rows(message: str, *rows: tuple[str, Bound, str]) -> tuple[Row, ...]:
    return tuple(Row(message, field, bound, why) for field, bound, why in rows)


_POSITION = Whole(2**63 - 1)
_FINITE_COST = "sums of a million of them stay finite; NaN and infinity are recorded as absent"

TABLE: Final[tuple[Row, ...]] = (
    # model.proto
    *_rows(
        "VariableSpec",
        ("name", Text(1024), "a path of layers; stands in logs and files"),
        (
            "shape",
            Many(RANK, Whole(ELEMENTS, -(2**63))),
            "numpy has at most 64 axes, and products stay small; less than 1 is refused with the variable's name",
        ),
        ("dtype", Text(32), "the name of a type"),
        ("kind", FLAG, TYPED),
    ),
    *_rows(
        "Chunk",
        ("offset", PAYLOAD, "within the largest model"),
        ("data", Data(64 * 2**20), "chunks of 1 to 4 MiB are the fastest; a buffer never exceeds this"),
    ),
    # coordinator.proto: what servers receive
    *_rows(
        "JoinRequest",
        ("worker", NAME, NAMED),
        ("session", NAME, "random, chosen once by the process"),
        ("variables", Many(VARIABLES), "planned in less than a second"),
        ("plan", FINGERPRINT, HASHED),
        ("servers", Whole(SERVERS), "one process each"),
        ("wire_dtype", FLAG, TYPED),
        ("task_index", Whole(WORKERS - 1), "a worker's index; index + 1 is sent back in 32 bits"),
        ("optimizer", JSON, "a name and a few numbers"),
        ("job", NAME, NAMED),
    ),
    *_rows(
        "SessionRequest",
        *((name, SUB, PART) for name in ("hello", "ready", "commit", "abandon", "done", "leave", "report")),
    ),
    *_rows(
        "Hello",
        ("job", NAME, NAMED),
        ("worker", NAME, NAMED),
        ("incarnation", Whole(2**31), COUNTED),
        ("session", NAME, "random, chosen once by the process"),
    ),
    *_rows("Ready", ("holding", COUNTER, COUNTED)),
    *_rows(
        "Commit",
        ("ticket", COUNTER, COUNTED),
        ("batch", Whole(2**48 - 1), "a position in the data; sums of them fit 64 bits"),
        ("samples", Whole(2**48 - 1), "sums of them fit 64 bits"),
        ("loss", Real(1e300, -1e300, nonfinite=True), _FINITE_COST),
        ("norm", Real(1e300, -1e300, nonfinite=True), _FINITE_COST),
        ("receipts", Many(SERVERS, SECRET), "one of every server"),
        ("ready", FLAG, TYPED),
        ("times", SUB, PART),
    ),
    *_rows(
        "Times", ("pull", SECONDS, DURATION), ("compute", SECONDS, DURATION), ("before", SECONDS, DURATION)
    ),
    *_rows("Abandon", ("ticket", COUNTER, COUNTED), ("reason", REASON, SAID)),
    *_rows("Leave", ("reason", REASON, SAID)),
    *_rows(
        "Report",
        ("version", COUNTER, COUNTED),
        ("metrics", Many(100, Real(), Text(128)), "one line of metrics.jsonl; finite, so that it is JSON"),
    ),
    # coordinator.proto: what workers receive
    *_rows(
        "JoinReply",
        ("job", NAME, NAMED),
        ("worker", NAME, NAMED),
        ("incarnation", Whole(2**31), COUNTED),
        ("worker_index", Whole(WORKERS - 1), "a worker's index"),
        ("worker_count", Whole(WORKERS), "workers of a job"),
        ("seed", Whole(2**64 - 1), "any 64 bits"),
        ("next_batch", Whole(2**48), "a position in the data"),
        ("worker_timeout", SECONDS, DURATION),
        ("membership_token", SECRET, PROOF),
        ("local_rule", SUB, PART),
    ),
    *_rows(
        "LocalRule",
        ("name", NAME, NAMED),
        ("knobs", Many(32, Real(), NAME), "the numbers of one rule"),
    ),
    *_rows("SessionReply", ("events", Many(4096), "what became true together")),
    *_rows(
        "SessionEvent",
        *((name, SUB, PART) for name in ("grant", "cancel", "disposition", "stop", "refusal", "welcome")),
    ),
    *_rows(
        "Grant",
        ("ticket", COUNTER, COUNTED),
        ("version", COUNTER, COUNTED),
        ("initialise", FLAG, TYPED),
        ("index", COUNTER, COUNTED),
    ),
    *_rows("Cancel", ("ticket", COUNTER, COUNTED), ("reason", REASON, SAID)),
    *_rows(
        "Disposition",
        ("ticket", COUNTER, COUNTED),
        ("fate", FLAG, TYPED),
        ("version", COUNTER, COUNTED),
        ("staleness", COUNTER, COUNTED),
        ("weight", FACTOR, NUMBER),
        ("reason", REASON, SAID),
    ),
    *_rows(
        "Stop",
        ("reason", REASON, SAID),
        ("version", COUNTER, COUNTED),
        ("success", FLAG, TYPED),
        ("evaluate", FLAG, TYPED),
        ("index", COUNTER, COUNTED),
    ),
    *_rows("Refusal", ("message", REASON, SAID), ("fatal", FLAG, TYPED), ("ticket", COUNTER, COUNTED)),
    *_rows("StatusRequest", ("entries_from", COUNTER, "a log index")),
    *_rows(
        "StatusReply",
        ("job", NAME, NAMED),
        ("phase", NAME, NAMED),
        ("version", COUNTER, COUNTED),
        ("seconds", SECONDS, DURATION),
        ("policy", Text(256), "a name, or module:Class"),
        ("optimizer", NAME, NAMED),
        ("workers", Many(WORKERS), "one line each; a server lists some, and counts the others"),
        ("unlisted", COUNTER, COUNTED),
        ("servers", Many(SERVERS), "one line each"),
        *((name, COUNTER, COUNTED) for name in ("committed", "applied", "dropped", "pending")),
        ("samples", _POSITION, "a sum of samples"),
        ("loss", Real(nonfinite=True), "NaN before the first commit"),
        ("mean_staleness", Real(1e15, 0.0), "versions"),
        ("max_staleness", COUNTER, COUNTED),
        ("note", REASON, SAID),
        ("entries", Many(1000, Text(1 << 20, printable=False)), "what an observer takes in one look"),
        ("entries_from", COUNTER, "a log index"),
    ),
    *_rows(
        "WorkerStatus",
        ("name", NAME, NAMED),
        ("incarnation", Whole(2**31), COUNTED),
        ("state", NAME, NAMED),
        ("seconds", SECONDS, DURATION),
        ("waiting_for", Text(1 << 20, printable=False), "a sentence that may name many workers"),
        *((n, COUNTER, COUNTED) for n in ("ticket", "base_version", "committed", "applied", "dropped")),
        ("mean_staleness", Real(1e15, 0.0), "versions"),
        ("max_staleness", COUNTER, COUNTED),
        ("releasers", Many(WORKERS, NAME), "workers by name"),
    ),
    *_rows(
        "ServerStatus",
        ("task_index", Whole(SERVERS - 1), "a server's index"),
        ("address", Text(300), "host:port; a host name has at most 253 characters"),
        ("state", NAME, NAMED),
        ("bytes", PAYLOAD, "within the largest model"),
        ("executed", COUNTER, COUNTED),
    ),
    # shard.proto: what servers receive
    *_rows("PushRequest", ("header", SUB, PART), ("chunk", SUB, PART)),
    *_rows(
        "PushHeader",
        ("job", NAME, NAMED),
        ("worker", NAME, NAMED),
        ("ticket", COUNTER, COUNTED),
        ("plan", FINGERPRINT, HASHED),
        ("dtype", FLAG, TYPED),
        ("bytes", PAYLOAD, "within the largest model; the plan says the exact number"),
        ("after", COUNTER, "a log index"),
        ("incarnation", Whole(2**31), COUNTED),
        ("membership_token", SECRET, PROOF),
    ),
    *_rows(
        "PullRequest",
        ("job", NAME, NAMED),
        ("ticket", COUNTER, COUNTED),
        ("version", COUNTER, COUNTED),
        ("plan", FINGERPRINT, HASHED),
        ("dtype", FLAG, TYPED),
        ("after", COUNTER, "a log index"),
        ("worker", NAME, NAMED),
        ("incarnation", Whole(2**31), COUNTED),
        ("membership_token", SECRET, PROOF),
    ),
    *_rows(
        "ExchangeRequest",
        *((name, SUB, PART) for name in ("push", "chunk", "pull", "commit", "hello", "attach")),
        ("slot", Whole(1024), "slots of one attachment"),
        ("in_place", FLAG, TYPED),
    ),
    *_rows(
        "Attach",
        ("job", NAME, NAMED),
        ("worker", NAME, NAMED),
        ("incarnation", Whole(2**31), COUNTED),
        ("membership_token", SECRET, PROOF),
        ("plan", FINGERPRINT, HASHED),
        ("after", COUNTER, "a log index"),
        ("place", Text(256), "a kernel's and a name space's identity"),
        ("ask", FLAG, TYPED),
    ),
    *_rows("FollowRequest", *((n, SUB, PART) for n in ("open", "configure", "decisions", "shutdown"))),
    *_rows(
        "Open",
        ("job", NAME, NAMED),
        ("epoch", Whole(2**64 - 1), "any 64 bits"),
        ("task_index", Whole(SERVERS - 1), "a server's index"),
        ("servers", Whole(SERVERS), "one process each"),
        ("secret", SECRET, PROOF),
        ("proof", SECRET, PROOF),
    ),
    *_rows(
        "Configure",
        ("variables", Many(VARIABLES), "planned in less than a second"),
        ("plan", FINGERPRINT, HASHED),
        ("optimizer", JSON, CONFIG),
        ("tensors", JSON, CONFIG),
    ),
    *_rows("Decisions", ("decisions", Many(2**20), "entries that were decided together, or missed")),
    *_rows(
        "Decision",
        ("index", COUNTER, COUNTED),
        *((n, SUB, PART) for n in ("pin", "install", "fold", "apply", "release", "seal", "admit", "dismiss")),
        ("save", SUB, PART),
        ("discard", FLAG, TYPED),
        ("note", FLAG, TYPED),
    ),
    *_rows(
        "PinVersion",
        ("ticket", COUNTER, COUNTED),
        ("version", COUNTER, COUNTED),
        ("turn", COUNTER, COUNTED),
        ("initialise", FLAG, TYPED),
        ("worker", NAME, NAMED),
    ),
    *_rows("Admit", ("worker", NAME, NAMED), ("incarnation", Whole(2**31), COUNTED)),
    *_rows("Dismiss", ("worker", NAME, NAMED), ("kept", FLAG, TYPED)),
    *_rows("Save", ("version", COUNTER, COUNTED)),
    *_rows("Install", ("ticket", COUNTER, COUNTED)),
    *_rows("Seal", ("ticket", COUNTER, COUNTED)),
    *_rows(
        "Fold", ("ticket", COUNTER, COUNTED), ("factor", FACTOR, NUMBER), ("compensation", FACTOR, NUMBER)
    ),
    *_rows(
        "Apply",
        ("version", COUNTER, COUNTED),
        ("lr_scale", FACTOR, NUMBER),
        ("scale", FACTOR, NUMBER),
        ("parts", Many(WORKERS), "at most one contribution of every open ticket"),
    ),
    *_rows("Release", ("ticket", COUNTER, COUNTED)),
    *_rows("Shutdown", ("reason", REASON, SAID), ("exit_code", Whole(255), "an exit code of a process")),
    # shard.proto: what workers and the coordinator receive
    *_rows("PushReply", ("receipt", SECRET, PROOF)),
    *_rows("PullReply", ("chunk", SUB, PART), ("bytes", PAYLOAD, "within the largest model")),
    *_rows(
        "Segment",
        ("pid", Whole(2**22), "the largest process id of Linux"),
        ("fd", Whole(2**31 - 1), "a file descriptor"),
        ("token", SECRET, PROOF),
        ("bytes", PAYLOAD, "within the largest model"),
    ),
    *_rows(
        "Attached",
        ("refusal", REASON, SAID),
        ("control", SUB, PART),
        ("slots", Many(1024), "slots of one attachment"),
        ("arena_versions", Whole(1024), "versions that a server holds"),
        ("socket", Text(108, printable=False), "a Unix socket's address"),
        ("port", Whole(65535), "a TCP port"),
        ("token", SECRET, PROOF),
    ),
    *_rows("Located", ("segment", SUB, PART), ("live", Many(1024, SECRET), "segments of one server")),
    *_rows(
        "ExchangeReply",
        ("chunk", SUB, PART),
        ("bytes", PAYLOAD, "within the largest model"),
        ("receipt", SECRET, PROOF),
        ("events", Many(4096), "what became true together"),
        ("attached", SUB, PART),
        ("located", SUB, PART),
        ("code", Whole(16), "a status code of gRPC"),
        ("refusal", REASON, SAID),
    ),
    *_rows(
        "FollowReply",
        ("executed", COUNTER, COUNTED),
        ("error", REASON, SAID),
        ("bytes", PAYLOAD, "within the largest model"),
        ("diverged", FLAG, TYPED),
    ),
)

BOUNDS: Final[Mapping[tuple[str, str], Row]] = {(row.message, row.field): row for row in TABLE}

_Check = Callable[[Any], None]
_LARGEST: Final = sys.float_info.max


def check(message: Message) -> None:
    """Raise BoundError for the first field of `message`, or of a message inside it, that is beyond its bound."""
    _checker(message.DESCRIPTOR)(message)


@cache
def _checker(kind: Descriptor) -> _Check:
    """The checks of one kind of message, compiled from the table as `dataclasses` compile an `__init__`: they are on
    the path of every step, where a loop over fields takes three times as long.

    A value of the usual kind passes without a call. On others the test of their field has the last word.
    """
    lines = ["def run(message):"]
    inner: dict[FieldDescriptor, Descriptor | None] = {}
    names: dict[str, Any] = {"checker": _checker, "inner": inner}
    for field in kind.fields:
        row = BOUNDS.get((kind.name, field.name))
        if row is None:
            raise TypeError(f"{kind.name}.{field.name} has no row in pswire.bounds.TABLE")
        value, test = f"message.{field.name}", f"test_{field.name}"
        names[test] = _test(f"{kind.name}.{field.name}", row.bound, field)
        match row.bound:
            case Whole(most, least):
                lines += [f"if not {least} <= {value} <= {most}: {test}({value})"]
            case Real(most, least):
                # Neither NaN nor infinity compares so.
                least, most = max(least, -_LARGEST), min(most, _LARGEST)
                lines += [f"if not {least!r} <= {value} <= {most!r}: {test}({value})"]
            case Text(most):
                usual = f"(len(text) <= {most} and text.isascii() and text.isprintable())"
                lines += [f"text = {value}", f"if text and not {usual}: {test}(text)"]
            case Data(most):
                lines += [f"if len({value}) > {most}: {test}({value})"]
            case Many():
                lines += [f"many = {value}", f"if many: {test}(many)"]
            case Nested():
                inner[field] = field.message_type
            case Closed():
                pass
    if len(inner) > 2:
        # Most of them are absent.
        lines += [
            "for field, value in message.ListFields():",
            "    if field in inner: checker(inner[field])(value)",
        ]
    else:
        lines += [f"if message.HasField({f.name!r}): checker(kind_{f.name})(message.{f.name})" for f in inner]
        names |= {f"kind_{field.name}": kind for field, kind in inner.items()}
    exec("\n    ".join([*lines, "return None"]), names)  # noqa: S102  (of the table's own names and numbers)
    run: _Check = names["run"]
    return run


def _test(where: str, bound: Bound, field: FieldDescriptor) -> _Check:
    """What raises BoundError for a value of `field`."""
    match bound:
        case Whole():
            return _whole(where, bound)
        case Real():
            return _real(where, bound)
        case Text():
            return _text(where, bound)
        case Data(most):
            return _size(where, most, "bytes")
        case Many():
            return _many(where, bound, field)
        case Nested():
            return check
        case Closed():
            return _anything


def _anything(value: object) -> None:
    """A truth value, or a number that its reader looks up."""


def _many(where: str, bound: Many, field: FieldDescriptor) -> _Check:
    size = _size(where, bound.most, "elements")
    key = _test(where, bound.key, field) if bound.key is not None else None
    each = check if bound.each is None else _test(where, bound.each, field)

    def run(values: Any) -> None:
        size(values)
        if key is not None:
            for name in values:
                key(name)
        for value in values if key is None else values.values():
            each(value)

    return run


def _whole(where: str, bound: Whole) -> _Check:
    least, most = bound.least, bound.most

    def run(value: int) -> None:
        if not least <= value <= most:
            raise BoundError(f"{where}: expected {least} to {most}, got {value}")

    return run


def _real(where: str, bound: Real) -> _Check:
    least, most, nonfinite = bound.least, bound.most, bound.nonfinite

    def run(value: float) -> None:
        # Neither NaN nor infinity compares so.
        if least <= value <= most and value - value == 0:
            return
        if math.isfinite(value):
            raise BoundError(f"{where}: expected {least:g} to {most:g}, got {value:g}")
        if not nonfinite:
            raise BoundError(f"{where}: expected a finite number, got {value}")

    return run


def _text(where: str, bound: Text) -> _Check:
    most, printable, plain = bound.most, bound.printable, bound.plain

    def run(value: str) -> None:
        if len(value) > most:
            raise BoundError(f"{where}: expected at most {most} characters, got {len(value)}")
        if printable and not value.isprintable():
            raise BoundError(f"{where}: expected printable characters, got {ascii(value[:80])}")
        if plain and not value.isascii():
            raise BoundError(f"{where}: expected ASCII characters, got {ascii(value[:80])}")

    return run


def _size(where: str, most: int, what: str) -> _Check:
    def run(value: Sized) -> None:
        if len(value) > most:
            raise BoundError(f"{where}: expected at most {most} {what}, got {len(value)}")

    return run
