"""Errors of a document in words: pydantic's findings as "section.key: expected ..., got ..."."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pswire.logs.lines import escaped_lines
from pswire.nearest import did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

# Replacements for pydantic's words that speak of Python rather than of the file.
_EXPECTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
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
) -> list[str]:
    """Return one sentence per finding.

    `known`: key names by section, "" for the sections themselves. `typed`: names that replace keys, such as the option
    that the user typed.
    """
    found = [_describe(finding, known).partition(":") for finding in error.errors(include_url=False)]
    return [escaped_lines(typed.get(key, key) + colon + rest) for key, colon, rest in found]


def _describe(finding: "ErrorDetails", known: Mapping[str, Sequence[str]]) -> str:
    path = [str(part) for part in finding["loc"]]
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
    if kind in ("delay", "every"):
        return f"{'.'.join(path)}: {finding['msg']}"  # quotes what it got
    if kind in _EXPECTED:
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
