"""`section.key=value` from a command line, put over a document that was read from a file.

A whole section may stand there, too: ``policy={name = "k-sync", aggregate = 4}`` replaces it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from pswire.config.toml import read_toml


class OverrideError(ValueError):
    """An override that cannot be understood or has no place in the document."""


def overrides_of(settings: Mapping[str, object]) -> list[str]:
    """`section.key=value` of each setting that is given, which is not None and, of a list, not empty."""
    # Strings, numbers and lists are TOML as JSON writes them; but not its escapes of a character by two others.
    return [
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in settings.items()
        if value is not None and value != ()
    ]


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set each override's key in `document`, in order; missing tables are made.

    Raises OverrideError for text that is not key=value and for a path through something that is no table.
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = [part.strip() for part in key.split(".")]
        value = parse_value(text.strip())
        if not equals or not all(path) or (len(path) < 2 and not isinstance(value, dict)):
            raise OverrideError(f"expected section.key=value (policy.max_staleness=2, say), got {override!r}")
        table = document
        for depth, part in enumerate(path[:-1], 1):
            child = table.setdefault(part, {})
            if not isinstance(child, dict):
                raise OverrideError(f"{override!r}: {'.'.join(path[:depth])} is no table, it is {child!r}")
            table = child
        table[path[-1]] = value


def parse_value(text: str) -> Any:
    """A TOML value; text that is none, or is a date, is a string as it stands."""
    try:
        parsed = read_toml(f"value = {text}")
    except ValueError:
        return text
    # A line break in the text could have smuggled in a second key.
    if list(parsed) != ["value"] or isinstance(parsed["value"], date | time):
        return text
    return parsed["value"]
