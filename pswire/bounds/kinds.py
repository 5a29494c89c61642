"""Kinds of bounds, and the bounds of all fields as the protos declare them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pswire.v1 import coordinator_pb2, memory_pb2, model_pb2, options_pb2, shard_pb2


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`."""

    most: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class Real:
    """A number from `least` to `most`; NaN and infinities only if `nonfinite`."""

    most: float = math.inf
    least: float = -math.inf
    nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """At most `most` characters; only printable ones if `printable`, only ASCII if `plain`."""

    most: int
    printable: bool = True
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """At most `most` bytes."""

    most: int


@dataclass(frozen=True, slots=True)
class Many:
    """At most `most` elements or map entries. `each`: the bound of an element that is not a message."""

    most: int
    each: "Bound | None" = None
    key: Text | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """A message, bounded by the rows of its own fields."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A truth value or an enum: the type is the bound. Unknown enum numbers are refused where they are read."""


Bound = Whole | Real | Text | Data | Many | Nested | Closed
"""The bound of a field."""


@dataclass(frozen=True, slots=True)
class FieldBound:
    """The bound of one field, and the reason for it."""

    message: str
    field: str
    bound: Bound
    why: str


MESSAGE_BYTES: Final = 2**16
"""The most bytes of a message to a method that declares nothing else."""
HEADER_BYTES: Final = 2**19
"""The most bytes of what comes before or beside a payload."""

_FILES: Final = (model_pb2, memory_pb2, coordinator_pb2, shard_pb2)
_REAL: Final = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_CLOSED: Final = (FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM)


def declared() -> Iterator[FieldBound]:
    """Yield the bound of each field of each message, in the order of the protos. Raises TypeError if one is missing."""
    for file in _FILES:
        for name, kind in file.DESCRIPTOR.message_types_by_name.items():
            if not kind.GetOptions().map_entry:
                for field in kind.fields:
                    yield row_of(name, field)


def row_of(message: str, field: Any) -> FieldBound:
    """Return the bound of a field. Raises TypeError if it needs one and has none."""
    options = field.GetOptions()
    if options.HasExtension(options_pb2.bound):
        option = options.Extensions[options_pb2.bound]
        return FieldBound(message, field.name, _bound(option, field), option.why or _meant(option).why)
    if field.is_repeated or not (field.message_type or field.type in _CLOSED):
        raise TypeError(f"{message}.{field.name}: expected a bound in protos/pswire/v1, got none")
    if field.message_type is not None:
        return FieldBound(message, field.name, Nested(), "a message with bounds of its own")
    return FieldBound(message, field.name, Closed(), "its type allows nothing else")


def _meant(option: Any) -> Any:
    """Return the shared bound that is named, or the bound given here."""
    named = options_pb2.Shared.DESCRIPTOR.values_by_number[getattr(option, "is")]
    return named.GetOptions().Extensions[options_pb2.means] if named.number else option


def _bound(option: Any, field: Any) -> Bound:
    if not field.is_repeated:
        return _single(option, field.type)
    inside = field.message_type
    if inside is not None and inside.GetOptions().map_entry:
        key, value = (inside.fields_by_name[name].type for name in ("key", "value"))
        text = _single(option.key, key)
        assert isinstance(text, Text)
        return Many(option.most, _single(option.each, value), text)
    return Many(option.most, None if inside is not None else _single(option.each, field.type))


def _single(option: Any, kind: int) -> Bound:
    """Return the bound of a single value."""
    meant = _meant(option)
    if kind in _REAL:
        low = meant.low if meant.HasField("low") else -math.inf
        return Real(meant.high if meant.HasField("high") else math.inf, low, meant.nonfinite)
    if kind == FieldDescriptor.TYPE_STRING:
        return Text(meant.most, not meant.unprintable, meant.ascii)
    return Data(meant.most) if kind == FieldDescriptor.TYPE_BYTES else Whole(meant.most, meant.least)


def _largest() -> Iterator[tuple[str, int]]:
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                declared = method.GetOptions().Extensions[options_pb2.largest]
                yield f"/{service.full_name}/{method.name}", declared or MESSAGE_BYTES


LARGEST: Final = dict(_largest())
"""The most bytes of a message to each of our methods, by path."""
