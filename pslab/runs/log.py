"""Decision logs as they are read: one JSON object per line, an entry of `pswire.decisions.entries` each.

Reading is strict about what an entry must carry and ignores extra keys, so a newer server's log stays readable. A line
that cannot be read becomes `Malformed`, never an exception: a check reports on the rest of the log too. This is the
only module that parses decision logs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pswire.decisions.entries import KINDS, Entry
from pswire.decisions.records import FieldError, from_json, number, text, whole


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log that could be read. `line` counts from 1, `i` is the entry's own index, `t` in seconds.

    `record`: the JSON object itself, with the keys that `fact` does not have.
    """

    line: int
    i: int
    t: float
    kind: str
    fact: Entry
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line of the log that could not be read, and why. `i` where it is known."""

    line: int
    i: int | None
    problem: str


def loads(given: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raises RecursionError, and ValueError for whatever else is wrong.

    That includes half a character (a lone surrogate): no text with one can be printed, or written to another file.
    """
    found = json.loads(given, parse_constant=parse_constant)
    if "\\ud" in given or "\\uD" in given:
        json.dumps(found, ensure_ascii=False).encode()
    return found


# What every line has beside the fields of its kind.
_HEAD: Mapping[str, Callable[[Any], Any]] = {"i": whole, "t": number, "kind": text}


def read_log(lines: Iterable[str]) -> Iterator[Line | Malformed]:
    """Read a log lazily, an item for each line; blank lines are malformed like any other."""
    for count, given in enumerate(lines, start=1):
        index: int | None = None
        try:
            record = _object(given)
            if isinstance(record.get("i"), int):
                index = record["i"]
            yield _line(count, record)
        except FieldError as problem:
            yield Malformed(count, index, str(problem))


def _object(given: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise FieldError(f"contains {constant}, which is not JSON; a NaN is written as null")

    try:
        record = loads(given, refuse)
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:
        cut = "" if given.endswith("\n") else " (the line has no end: was the file cut off here?)"
        raise FieldError(f"is not a JSON object: {error}{cut}") from None
    if not isinstance(record, dict):
        raise FieldError(f"expected a JSON object, got {given.strip()[:40]!r}")
    return record


def _line(count: int, record: dict[str, Any]) -> Line:
    head: list[Any] = []
    for key, read in _HEAD.items():
        if key not in record:
            raise FieldError(f"entry has no {key!r}")
        try:
            head.append(read(record[key]))
        except FieldError as error:
            raise FieldError(f"entry: {key} should be {error}") from None
    index, t, kind = head
    if kind not in KINDS:
        raise FieldError(f"unknown kind {kind!r}; known kinds are {', '.join(KINDS)}")
    return Line(count, index, t, kind, from_json(KINDS[kind], record, f"{kind} entry"), record)
