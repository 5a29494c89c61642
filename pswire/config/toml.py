"""TOML: write documents, which Python cannot, read documents of others, and apply `section.key=value` to them."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Characters that a basic string must escape: controls, DEL, quote, backslash.
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')


# tomllib takes quadratic time in the number of a key's parts; no section of ours has five.
_LONG_KEY = re.compile(r"""(?:(?:[A-Za-z0-9_-]{1,64}|"[^"\n]{0,64}"|'[^'\n]{0,64}')[ \t]*\.[ \t]*){40}""")


def read_toml(text: str) -> dict[str, Any]:
    """Parse a document.

    Raises ValueError (including TOMLDecodeError, and for a number of thousands of digits) and RecursionError.
    """
    if _LONG_KEY.search(text):
        raise ValueError("expected keys of at most 40 parts")
    return tomllib.loads(text)


def toml_text(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Write a document of `tables` by dotted name, such as {"run": {...}, "workers.0": {...}}.

    Values may be what `tomllib` returns: str, bool, int, float, dates, lists and (inline) tables. Raises TypeError for
    anything else.
    """
    blocks = []
    for name, table in tables.items():
        lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
        blocks.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(blocks)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return '"' + _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + '"'


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            # The repr of a float is exact, and TOML spells inf and nan alike.
            return repr(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"
    raise TypeError(f"expected a value that TOML has, got {value!r} ({type(value).__name__})")


class TooLong(ValueError):
    """A file longer than its kind may be. The text names the file and the limit."""


def read_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    """Read a text of at most `most` characters. Raises TooLong, OSError, UnicodeDecodeError."""
    with path.open(encoding=encoding) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise TooLong(f"{path}: expected at most {most} characters, got more")
    return text


class OverrideError(ValueError):
    """An override that cannot be parsed or applied to the document."""


def overrides_of(settings: Mapping[str, object]) -> list[str]:
    """Return `section.key=value` for each setting that is given: not None and not an empty tuple."""
    # JSON strings, numbers and lists are valid TOML, except for JSON's escapes of a character by a surrogate pair.
    return [
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in settings.items()
        if value is not None and value != ()
    ]


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each override's key in `document`, in order, making missing tables.

    Raises OverrideError for text that is not key=value, and for a path through something that is no table.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = [part.strip() for part in key.split(".")]
        value = parse_value(text.strip())
        if not equals or not all(path) or (len(path) < 2 and not isinstance(value, dict)):
            raise OverrideError(f"expected section.key=value, for example policy.slack=2, got {override!r}")
        table = document
        for depth, part in enumerate(path[:-1], 1):
            child = table.setdefault(part, {})
            if not isinstance(child, dict):
                raise OverrideError(f"{override!r}: {'.'.join(path[:depth])} is no table, it is {child!r}")
            table = child
        table[path[-1]] = value


def parse_value(text: str) -> Any:
    """Parse a TOML value; text that is none, or is a date, is returned as a string."""
    try:
        parsed = read_toml(f"value = {text}")
    except ValueError:
        return text
    # A line break in the text could add a second key.
    if list(parsed) != ["value"] or isinstance(parsed["value"], date | time):
        return text
    return parsed["value"]
