"""Between values (small dataclasses and named tuples) and protobuf messages, compiled by field name.

A value and its message have fields of the same names. A field of the value holds a number, text, truth value or bytes,
or None in place of one; a value or None; several values, texts or bytes; a mapping; or a word of an enumeration, which
has it in capitals behind a prefix (``FATE_APPLIED`` is "applied"; a number without a word is "unknown"). A field that
comparisons leave out belongs to the program that holds the value, and is in no message.
"""

import types
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf import message_factory
from google.protobuf.message import Message

from pswire.logs.texts import escaped

V = TypeVar("V")
M = TypeVar("M", bound=Message)


class MessageCodec(Generic[V, M]):
    """Converts values of class `kind` to messages of class `message` and back, as fast as code written by hand.

    `sent`, `taken`: of texts, in messages and in values that are made, so many characters are kept, and what cannot be
    printed is escaped; 0: they stay as they are. `part`: the message has more fields than the value.
    Raises TypeError where fields do not match.
    """

    def __init__(
        self, kind: type[V], message: type[M], *, sent: int = 0, taken: int = 0, part: bool = False
    ) -> None:
        self._texts, self._part = (sent, taken), part
        names: dict[str, Any] = {"Kind": kind, "Message": message, "escaped": escaped}
        hints = get_type_hints(kind)
        described = message.DESCRIPTOR.fields_by_name
        own = _fields(kind)
        if not set(own) <= set(described) or not (part or len(own) == len(described)):
            raise TypeError(f"{kind.__name__} has the fields {own}, its message {list(described)}")
        pairs = [self._field(name, hints[name], described[name], names) for name in own]
        fill = "\n    ".join(line for lines, _ in pairs for line in lines)
        made = ", ".join(back for _, back in pairs)
        exec(_CODE.format(fill=fill, made=made), names)  # noqa: S102  (of the names of our own fields)
        # Into a message that may have been filled before, which takes half the time of a new one.
        self.fill: Callable[[M, V], None] = names["fill"]
        self.to_wire: Callable[[V], M] = names["to_wire"]
        self.from_wire: Callable[[M], V] = names["from_wire"]

    def _field(self, name: str, hint: Any, field: Any, names: dict[str, Any]) -> tuple[list[str], str]:
        """Return the lines that fill the field of a message `m` from a value `v`, and the value's field from `m`."""
        optional = get_origin(hint) in (Union, types.UnionType)
        inner = next(each for each in get_args(hint) if each is not types.NoneType) if optional else hint
        several = get_origin(inner) in (tuple, list)
        if field.enum_type is not None:
            words = {
                each.name.removeprefix(f"{name.upper()}_").lower(): each.number
                for each in field.enum_type.values
            }
            names[f"number_{name}"] = words
            names[f"word_{name}"] = {number: word for word, number in words.items() if number}
            return [f"m.{name} = number_{name}[v.{name}]"], f"word_{name}.get(m.{name}, 'unknown')"
        if get_origin(inner) is Mapping:
            return [f"m.{name}.clear()", f"m.{name}.update(v.{name})"], f"dict(m.{name})"
        if field.message_type is not None:
            kind = get_args(inner)[0] if several else inner
            codec = self._nested(kind, message_factory.GetMessageClass(field.message_type))
            names[f"fill_{name}"], names[f"from_{name}"] = codec.fill, codec.from_wire
            if several:
                fill = [f"m.ClearField({name!r})", f"for e in v.{name}: fill_{name}(m.{name}.add(), e)"]
                return fill, f"{get_origin(inner).__name__}([from_{name}(e) for e in m.{name}])"
            fill = [
                f"if v.{name} is None: m.ClearField({name!r})",
                f"else: fill_{name}(m.{name}, v.{name})",
            ]
            return fill, f"from_{name}(m.{name}) if m.HasField({name!r}) else None"
        if several:
            return [f"m.{name}[:] = v.{name}"], f"{get_origin(inner).__name__}(m.{name})"
        return self._single(name, inner, optional, field.has_presence)

    def _nested(self, kind: Any, message: Any) -> "MessageCodec[Any, Any]":
        sent, taken = self._texts
        return MessageCodec(kind, message, sent=sent, taken=taken, part=self._part)

    def _single(self, name: str, kind: Any, optional: bool, presence: bool) -> tuple[list[str], str]:
        mine, its = f"v.{name}", f"m.{name}"
        if kind is str:
            mine, its = (
                f"{text} and escaped({text}, {most})" if most else text
                for text, most in zip((mine, its), self._texts, strict=True)
            )
        if not optional:
            return [f"m.{name} = {mine}"], its
        if not presence:
            return [f"m.{name} = {mine} or 0"], its
        fill = [f"if v.{name} is None: m.ClearField({name!r})", f"else: m.{name} = {mine}"]
        return fill, f"{its} if m.HasField({name!r}) else None"


_CODE = """\
def fill(m, v):
    {fill}
def to_wire(v):
    m = Message()
    fill(m, v)
    return m
def from_wire(m):
    return Kind({made})
"""


def _fields(kind: Any) -> list[str]:
    """Return the names of those that messages have: the first ones, in the order of the class's arguments."""
    described = getattr(kind, "__dataclass_fields__", {})
    return [name for name in kind.__match_args__ if name not in described or described[name].compare]


class OneofCodec(Generic[V, M]):
    """Converts values of the classes of a union to messages with a oneof, whose fields have the classes' names.

    A class without fields is a truth value there. `sent`, `taken`: as those of `MessageCodec`. `codecs`: by class.
    A field of the oneof without a class is nothing to this codec. Raises TypeError for a class without a field.
    """

    def __init__(self, union: Any, message: type[M], *, sent: int = 0, taken: int = 0) -> None:
        [self._oneof] = message.DESCRIPTOR.oneofs_by_name
        kinds: dict[str, Any] = {kind.__name__.lower(): kind for kind in get_args(union)}
        described = message.DESCRIPTOR.fields_by_name
        if not set(kinds) <= set(described):
            raise TypeError(
                f"{message.__name__}: expected a field for each of {list(kinds)}, got {list(described)}"
            )
        self._message = message
        self.codecs: dict[Any, MessageCodec[Any, Any]] = {}
        self._fields: dict[Any, tuple[str, Callable[[Any, V], None] | None]] = {}
        self._kinds: dict[str, tuple[Any, Callable[[Any], V] | None]] = {}
        for name, kind in kinds.items():
            self._fields[kind], self._kinds[name] = (name, None), (kind, None)
            inside: Any = described[name].message_type
            if inside is not None:
                made = message_factory.GetMessageClass(inside)
                codec = self.codecs[kind] = MessageCodec[Any, Any](kind, made, sent=sent, taken=taken)
                self._fields[kind], self._kinds[name] = (name, codec.fill), (kind, codec.from_wire)

    def fill(self, message: M, value: V) -> None:
        """Write `value` into a message."""
        name, fill = self._fields[type(value)]
        if fill is None:
            setattr(message, name, True)
        else:
            fill(getattr(message, name), value)

    def to_wire(self, value: V) -> M:
        """Return a message with nothing but `value`."""
        message = self._message()
        self.fill(message, value)
        return message

    def from_wire(self, message: M) -> V | None:
        """Return the message's value; None where it has none, or one of a kind that this codec does not know."""
        name = message.WhichOneof(self._oneof)
        if name is None or name not in self._kinds:
            return None
        kind, read = self._kinds[name]
        return cast(V, kind()) if read is None else read(getattr(message, name))
