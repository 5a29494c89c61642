"""Entries of the log as lines of JSON: the bytes of `json.dumps`, in a third of the time.

A commit leaves three lines or four, all of a few kinds: what `json` finds out anew for each of them (which keys, in
which order, of which type) is known here.
"""

import json
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from psserver.coordinator.entries import Commit, Entry, Fields, Times, field_names, plain

# Made once. What is written holds no cycles, and NaN is not JSON.
ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)

# Of each kind: the names of its fields, each with the text that comes before its value.
_KEYS: Final[dict[type[Fields], list[tuple[str, str]]]] = {}
_ROUNDED: Final = frozenset(Times._fields)


def entry_line(index: int, t: float, entry: Entry) -> str:
    """As ``json.dumps({"i": index, "t": round(t, 6), **entry.to_json()})``, without spaces. Raises ValueError."""
    return f'{{"i":{index},"t":{value_text(round(t, 6))},"kind":"{entry.kind}"{_fields(entry)}}}'


def value_text(value: Any) -> str:
    """One value, without spaces: NaN and infinity become null. Raises ValueError for what is not JSON."""
    kind = type(value)
    if kind is int:
        return repr(value)
    if kind is float:
        # Neither NaN nor infinity is its own difference to zero.
        return repr(value) if value - value == 0.0 else "null"
    if kind is str:
        return encode_basestring_ascii(value)
    if value is None:
        return "null"
    if kind is tuple:
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, Fields):
        # A part of an entry has no kind of its own.
        return f"{{{_fields(value)[1:]}}}"
    return ENCODER.encode(plain(value))


def _fields(entry: Fields) -> str:
    """The fields that are not None, each behind a comma."""
    kind = type(entry)
    keys = _KEYS.get(kind)
    if keys is None:
        keys = _KEYS[kind] = [(name, f',"{name}":') for name in field_names(kind)]
    rounds = kind is Commit
    found = []
    for name, key in keys:
        value = getattr(entry, name)
        if value is not None:
            if rounds and name in _ROUNDED:
                # As `t`: whole microseconds.
                value = round(value, 6)
            found.append(key + value_text(value))
    return "".join(found)
