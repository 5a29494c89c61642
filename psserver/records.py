"""Saved state as plain data: converts dataclasses to JSON-able data and back, checking every field.

Fields of records are bool, int, float, str, bytes, None, a choice of strings (Literal), other such dataclasses; lists,
sets, tuples (also named ones) and dicts with names or whole numbers as keys of all these; or `object` for data that is
JSON-able already. A field that `__init__` does not take is an index over the others: it is neither saved nor read. No
code is run and no class is looked up on the word of a file.
"""

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pswire.domains import in_range

R = TypeVar("R")

# Most values, which are tried first.
_PLAIN = frozenset({int, str, bool, type(None)})
# JSON cannot represent these.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class StateError(ValueError):
    """Saved state that cannot be restored. The text says which part, what was expected and what was found."""


def to_plain(value: Any) -> Any:
    """Convert a record, or any value of a field, to data that ``json.dumps(..., allow_nan=False)`` accepts.

    Raises StateError for a value that no field may have.
    """
    kind: Any = type(value)
    if kind in _PLAIN or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if hasattr(kind, "__dataclass_fields__"):
        return {name: _plain_field(getattr(value, name)) for name in _fields(kind)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    raise StateError(f"expected plain data, got a {type(value).__name__}: {value!r}")


def _plain_field(value: object) -> Any:
    """Convert a field, whose type says whether a list stands for a set."""
    if type(value) in _PLAIN:
        return value
    return sorted(value) if isinstance(value, (set, frozenset)) else to_plain(value)


def from_plain(kind: type[R], data: object, where: str) -> R:
    """Restore the record of class `kind` from `data` of `to_plain`; `where` names it in messages.

    Raises StateError for a missing or unknown field, and for a value of another type.
    """
    return cast(R, _record(kind, data, where))


def _record(kind: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise StateError(f"{where}: expected the fields of {kind.__name__}, got {data!r}")
    fields = _fields(kind)
    unknown = sorted(str(key) for key in data if key not in fields)
    missing = [name for name in fields if name not in data]
    if unknown or missing:
        wrong = [f"unknown {name!r}" for name in unknown] + [f"no {name!r}" for name in missing]
        raise StateError(
            f"{where}: expected the fields {', '.join(fields)}; got {', '.join(wrong)}: "
            "it was saved by another release, or edited"
        )
    return kind(**{name: _value(hint, data[name], f"{where}.{name}") for name, hint in fields.items()})


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the type of each field that is saved, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


@cache
def _items(kind: Any) -> tuple[Any, ...]:
    """Return the types of a named tuple's values."""
    return tuple(get_type_hints(kind).values())


def _value(hint: Any, data: object, where: str) -> object:
    origin = get_origin(hint)
    if hint is object or hint is Any:
        return data
    if origin in (Union, types.UnionType):
        return _optional(hint, data, where)
    if origin is Literal:
        if data not in get_args(hint):
            raise StateError(f"{where}: expected one of {', '.join(map(repr, get_args(hint)))}, got {data!r}")
        return data
    if origin in (list, tuple):
        return _sequence(hint, data, where)
    if origin in (set, frozenset):
        return origin(_sequence(hint, data, where))
    if origin is not None:
        return _table(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, tuple):
        named: Any = hint
        return named(*_fixed(_items(hint), _listed(data, where), where))
    if dataclasses.is_dataclass(hint):
        return _record(hint, data, where)
    return _scalar(hint, data, where)


def _table(hint: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise StateError(f"{where}: expected a table, got {data!r}")
    kind, item = get_args(hint)
    return {_key(kind, key, where): _value(item, each, f"{where}.{key}") for key, each in data.items()}


def _key(kind: Any, key: object, where: str) -> object:
    if kind is not int:
        return str(key)
    try:
        return int(str(key))
    except ValueError:
        raise StateError(f"{where}: expected whole numbers as keys, got {key!r}") from None


def _optional(hint: Any, data: object, where: str) -> object:
    """Read an optional value, ``X | None``; records have no other unions."""
    (inner,) = (each for each in get_args(hint) if each is not type(None))
    return None if data is None else _value(inner, data, where)


def _sequence(hint: Any, data: object, where: str) -> object:
    found, inner = _listed(data, where), get_args(hint)
    if get_origin(hint) is tuple and inner[-1] is not Ellipsis:
        return _fixed(inner, found, where)
    items = [_value(inner[0], item, f"{where}[{i}]") for i, item in enumerate(found)]
    return tuple(items) if get_origin(hint) is tuple else items


def _listed(data: object, where: str) -> Sequence[object]:
    if not isinstance(data, (list, tuple)):
        raise StateError(f"{where}: expected a list, got {data!r}")
    return data


def _fixed(hints: Sequence[Any], data: Sequence[object], where: str) -> tuple[object, ...]:
    """Read one value for each hint."""
    if len(data) != len(hints):
        raise StateError(f"{where}: expected {len(hints)} values, got {len(data)}")
    return tuple(
        _value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, data, strict=True))
    )


def _scalar(hint: Any, data: object, where: str) -> object:
    if hint is bytes:
        return _bytes(data, where)
    if hint is float:
        if isinstance(data, str) and data in _NOT_FINITE:
            return _NOT_FINITE[data]
        fits = in_range(data)
    else:
        fits = type(data) is hint
    if not fits:
        noun = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}[hint]
        raise StateError(f"{where}: expected {noun}, got {data!r}")
    return data


def _bytes(data: object, where: str) -> bytes:
    try:
        return bytes.fromhex(cast(str, data))
    except (TypeError, ValueError):
        raise StateError(f"{where}: expected bytes as hexadecimal digits, got {data!r}") from None
