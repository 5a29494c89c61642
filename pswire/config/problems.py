"""Errors of a document in words: pydantic's findings as "section.key: expected ..., got ..."."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pswire.logs.lines import escaped_lines
from pswire.nearest import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# Findings that are about a number's range, or about something else than a number where one is expected.
_RANGES: Final = (
    *("int_type", "float_type", "int_from_float", "finite_number"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)

# The last part of the place of a finding about one of several types.
_ALTERNATIVE: Final = re.compile(r"literal\[|constrained-|float$|int$")

# Replacements for pydantic's words that speak of Python rather than of the file.
_EXPECTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "string_too_short": "a name",
}


def describe_problems(
    error: "ValidationError",
    known: Mapping[str, Sequence[str]],
    typed: Mapping[str, str] = MappingProxyType({}),
    ranges: Callable[[Sequence[str]], str] = lambda path: "",
) -> list[str]:
    """Return one sentence per finding.

    `known`: key names by section, "" for the sections themselves. `typed`: names that replace keys, such as the option
    that the user typed. `ranges`: returns the numbers that a key takes, in words, or "".
    """
    found: dict[str, str] = {}
    for finding in error.errors(include_url=False):
        key, colon, rest = _describe(finding, known, ranges).partition(":")
        if (before := found.get(key)) and finding["loc"] and _ALTERNATIVE.match(str(finding["loc"][-1])):
            # Another kind of value that the key could have had.
            rest = f"{before[1:].rpartition(', got ')[0]} or {rest.removeprefix(' expected ')}"
            found[key] = f":{rest}"
        else:
            found[key if key not in found else f"{key}{' ' * len(found)}"] = colon + rest
    return [escaped_lines(_named(key.strip(), typed) + text) for key, text in found.items()]


def _named(key: str, typed: Mapping[str, str]) -> str:
    """Return the option that gave the key, or the table that it is in."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if (option := typed.get(".".join(parts[:length]))) is not None:
            return option if length == len(parts) else f"{option}: {key}"
    return key


def _describe(
    finding: "ErrorDetails", known: Mapping[str, Sequence[str]], ranges: Callable[[Sequence[str]], str]
) -> str:
    path = [str(part) for part in finding["loc"]]
    if path and _ALTERNATIVE.match(path[-1]):
        path.pop()
    kind = finding["type"]
    if kind == "extra_forbidden":
        return _unknown(path, known)
    if path and path[-1] == "[key]":
        *table, key = path[:-1]
        zero = ".".join([*table, "0"])
        return f"{'.'.join([*table, key])}: expected a worker's number, such as {zero if table[1:] else f'[{zero}]'}"
    if kind == "missing":
        return f"{'.'.join(path)}: missing"
    if not path:
        return finding["msg"]
    if kind in ("delay", "interval", "size", "wire_dtype"):
        return f"{'.'.join(path)}: {finding['msg']}"  # quotes what it got
    if kind in _RANGES and (numbers := ranges(path)):
        expected = f"expected {numbers}"
    elif kind in _EXPECTED:
        expected = "expected " + _EXPECTED[kind].format_map(finding.get("ctx", {}))
    else:
        expected = finding["msg"]
    return f"{'.'.join(path)}: {expected}, got {_readable(finding['input'])}"


def _unknown(path: list[str], known: Mapping[str, Sequence[str]]) -> str:
    section, key = path[0] if len(path) > 1 else "", path[-1]
    what = f"{'.'.join(path)}: unknown key" if section else f"[{key}]: unknown section"
    others = [other for other, keys in known.items() if other and key in keys]
    # Prefer keys of sections over keys of tables inside them.
    elsewhere = [other for other in others if "." not in other] or others
    if elsewhere:
        return f"{what}; did you mean {' or '.join(f'{other}.{key}' for other in elsewhere)}?"
    table = ".".join(part for part in path[:-1] if not part.isdecimal())
    return what + did_you_mean(key, known.get(table, known[section]))


def _readable(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'the string "{value[:80]}"'
        case dict():
            return "a table"
        case list():
            return "a list"
    return repr(value)[:80]
