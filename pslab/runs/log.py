"""The reader of decision logs: one JSON object per line, each an entry of `psserver.decisions.entries`.

Reading is strict about required fields and ignores extra ones, so the log of a newer server stays readable. An
unreadable line becomes `Malformed`, never an exception, so that a check reports on the rest of the log as well. This is
the only module that parses decision logs.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psserver.decisions.entries import FORMAT, KINDS, READ_BY, Entry, Job
from psserver.decisions.records import FieldError, from_json, seconds, text, whole
from pswire.logs.lines import escaped


@dataclass(frozen=True, slots=True)
class Line:
    """A readable line of the log. `line` counts from 1, `i` is the entry's own index, `t` is in seconds.

    `record`: the JSON object, with the keys that `fact` does not have.
    """

    line: int
    i: int
    t: float
    kind: str
    fact: Entry
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """An unreadable line of the log, and why. `i`: its index, if it is known."""

    line: int
    i: int | None
    problem: str


def loads(given: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON, with texts as they may be printed. Raises RecursionError, and ValueError for anything else that is
    wrong.

    That includes lone surrogates: a text with one cannot be printed or written to another file. Other characters that
    are not printable, which no server writes, are escaped.
    """
    found = json.loads(given, parse_constant=parse_constant)
    if "\\ud" in given or "\\uD" in given:
        json.dumps(found, ensure_ascii=False).encode()
    return printable(found) if "\\" in given or not given.rstrip().isprintable() else found


def printable(value: Any) -> Any:
    """Return what JSON or TOML can say with every text and key in it as a terminal may show it."""
    match value:
        case str():
            return value if value.isprintable() else escaped(value, 10 * len(value))
        case dict():
            return {printable(key): printable(each) for key, each in value.items()}
        case list() | tuple():
            return [printable(each) for each in value]
    return value


# The fields that every line has besides those of its kind.
_HEAD: Mapping[str, Callable[[Any], Any]] = {"i": whole, "t": seconds, "kind": text}


def read_log(lines: Iterable[str]) -> Iterator[Line | Malformed]:
    """Read a log lazily, one item per line. Blank lines are malformed, too."""
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
    if kind == Job.kind:
        _check_format(record.get("format"))
    return Line(count, index, t, kind, from_json(KINDS[kind], record, f"{kind} entry"), record)


def _check_format(found: Any) -> None:
    if found != FORMAT:
        reads = READ_BY.get(found) if isinstance(found, int) else None
        able = f"{reads} reads it" if reads else "another release wrote it"
        raise FieldError(f"job entry: expected a log of format {FORMAT}, got {found!r}: {able}")
