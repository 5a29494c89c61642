"""From the lines of a decision log to typed facts; one JSON object per line.

Reading is strict about what an entry must carry and ignores extra keys, so a newer server's log
stays readable. A line that cannot be read becomes `Malformed`, never an exception: a check reports
on the rest of the log too. This is the only module that parses decision logs.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from pslab.runs.log import KINDS, Entry, Malformed, Part

# Looked up once: that takes longer than to read an entry.
_HINTS: Mapping[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in (*KINDS.values(), Part)}


class _Problem(ValueError):
    pass


def loads(text: str, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """As `json.loads`. Raises ValueError for whatever is wrong, also for half a character (a lone surrogate): no text
    with one can be printed, or written to another file. And RecursionError."""
    found = json.loads(text, parse_constant=parse_constant)
    if "\\ud" in text or "\\uD" in text:
        json.dumps(found, ensure_ascii=False).encode()
    return found


def read_log(lines: Iterable[str]) -> Iterator[Entry | Malformed]:
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
        record = loads(text, refuse)
    except _Problem:
        raise
    except (ValueError, RecursionError) as error:
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
