"""Entries of the log as lines of JSON: the bytes of `json.dumps`, in a tenth of the time.

A commit leaves three lines or four, all of a few kinds: what `json` finds out anew for each of them (which keys, in
which order, of which type) is known here. Each kind has a function, made when its first entry is written.
"""

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from psserver.coordinator.entries import Commit, Entry, Fields, Times, field_names, plain

# Made once. What is written holds no cycles, and NaN is not JSON.
ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)

# Of each kind: what makes the text of its fields.
_WRITERS: Final[dict[type[Fields], Callable[[Any], str]]] = {}
# In whole microseconds, as `t`.
_ROUNDED: Final = frozenset(Times._fields)


def entry_line(index: int, t: float, entry: Entry) -> str:
    """As ``json.dumps({"i": index, "t": round(t, 6), **entry.to_json()})``, without spaces. Raises ValueError."""
    kind = type(entry)
    fields = _WRITERS.get(kind) or _writer(kind)
    t = round(t, 6)
    at = f"{t!r}" if type(t) is float and t - t == 0.0 else value_text(t)
    return f'{{"i":{index},"t":{at},"kind":"{entry.kind}"{fields(entry)}}}'


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
        return f"[{','.join([value_text(each) for each in value])}]"
    if isinstance(value, Fields):
        # A part of an entry has no kind of its own.
        return f"{{{(_WRITERS.get(kind) or _writer(kind))(value)[1:]}}}"
    return ENCODER.encode(plain(value))


def _writer(kind: type[Fields]) -> Callable[[Any], str]:
    """The text of the fields that are not None, each behind a comma.

    Compiled as `dataclasses` compile an `__init__`, for the same reason: numbers and names, which nearly all values
    are, are written without a call.
    """
    lines, texts = ["def write(entry):"], []
    for number, name in enumerate(field_names(kind)):
        lines.append(f"    v{number} = entry.{name}")
        if kind is Commit and name in _ROUNDED:
            lines.append(f"    if v{number} is not None: v{number} = round(v{number}, 6)")
        lines += [
            f"    k{number} = type(v{number})",
            f"    if k{number} is int: s{number} = f',\"{name}\":{{v{number}}}'",
            f"    elif k{number} is str: s{number} = ',\"{name}\":' + quoted(v{number})",
            f"    elif k{number} is float and v{number} - v{number} == 0.0: s{number} = f',\"{name}\":{{v{number}!r}}'",
            f"    else: s{number} = '' if v{number} is None else ',\"{name}\":' + text(v{number})",
        ]
        texts.append(f"{{s{number}}}")
    lines.append(f"    return f'{''.join(texts)}'")
    names: dict[str, Any] = {"quoted": encode_basestring_ascii, "text": value_text}
    exec("\n".join(lines), names)  # noqa: S102  (of the names of our own fields)
    made: Callable[[Any], str] = names["write"]
    _WRITERS[kind] = made
    return made
