"""Write TOML, which Python reads but does not write; and read what others have written."""

import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Where TOML's basic strings and this text would differ: controls, DEL, quote, backslash.
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')


# A key of so many parts takes tomllib the square of their number; no section of ours has five.
_LONG_KEY = re.compile(r"""(?:(?:[A-Za-z0-9_-]{1,64}|"[^"\n]{0,64}"|'[^'\n]{0,64}')[ \t]*\.[ \t]*){40}""")


def read_toml(text: str) -> dict[str, Any]:
    """The document. Raises ValueError (of which TOMLDecodeError is one), also for a number of thousands of digits, and
    RecursionError."""
    if _LONG_KEY.search(text):
        raise ValueError("expected keys of at most 40 parts")
    return tomllib.loads(text)


def toml_text(tables: Mapping[str, Mapping[str, object]]) -> str:
    """A document of `tables` by dotted name, such as {"run": {...}, "workers.0": {...}}.

    Values may be what `tomllib` returns: str, bool, int, float, dates, lists and tables (written in
    line). Raises TypeError for anything else.
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
            # repr of a float is exact, and inf and nan are spelt alike.
            return repr(value)
        case datetime() | date() | time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"
    raise TypeError(f"expected a value that TOML has, got {value!r} ({type(value).__name__})")
