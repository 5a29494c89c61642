"""The numbers that a key of a document takes, in words: "a whole number from 1 to 65536"."""

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel


def range_of(model: type[BaseModel], path: Sequence[str]) -> str:
    """Return the numbers that the key at `path` takes; "" if it takes none."""
    found: tuple[Any, Sequence[Any]] = (model, ())
    for name in path:
        kind, _ = found
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if name not in kind.model_fields:
                return ""
            field = kind.model_fields[name]
            found = field.annotation, field.metadata
        else:
            # An entry of a list, or the value of a table.
            inner = [*get_args(kind), None][-2]
            found = getattr(inner, "__origin__", inner), getattr(inner, "__metadata__", ())
    return _words(*found)


def _words(kind: Any, metadata: Sequence[Any]) -> str:
    for each in get_args(kind) if kind not in (int, float) else ():
        # The number among several types.
        if getattr(each, "__origin__", each) in (int, float):
            kind, metadata = getattr(each, "__origin__", each), getattr(each, "__metadata__", ())
    if kind not in (int, float):
        return ""
    rules = [rule for each in metadata for rule in (each, *getattr(each, "metadata", ()))]
    ends = {
        sign: value
        for sign in ("ge", "gt", "le", "lt")
        for rule in rules
        if (value := getattr(rule, sign, None)) is not None
    }
    if kind is int:
        ends |= {"ge": ends["gt"] + 1} if "gt" in ends else {}
        ends |= {"le": ends["lt"] - 1} if "lt" in ends else {}
    noun = "a whole number" if kind is int else "a number"
    if "ge" in ends and "le" in ends:
        return f"{noun} from {_plain(ends['ge'])} to {_plain(ends['le'])}"
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " ".join(
        [noun, " and ".join(f"{words[sign]} {_plain(end)}" for sign, end in ends.items())]
    ).strip()


def _plain(end: float) -> str:
    if isinstance(end, int):
        return str(end)
    return f"{end:.0f}" if end.is_integer() and abs(end) < 1e16 else f"{end:g}"
