"""The messages of the protocol's values: requests and events of workers, variables.

`MessageCodec` and `OneofCodec` convert values (small dataclasses and named tuples) to protobuf messages and back,
compiled by field name. A value and its message have fields of the same names. A field of a value holds one of: a
number, text, truth value or bytes, or None; another value, or None; several values, texts, numbers or bytes; a mapping;
or a word of an enumeration. The enumeration has the word in capitals after its own name (``FATE_APPLIED`` of ``Fate``
is "applied"; a number without a word is "unknown"). A field that comparisons leave out is local to the program, and is
in no message.
"""

import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf import message_factory
from google.protobuf.message import Message

from pswire import protocol
from pswire.logs.lines import escaped
from pswire.model.variables import PlanError, VariableSpec
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2

V = TypeVar("V")
M = TypeVar("M", bound=Message)


class MessageCodec(Generic[V, M]):
    """Converts values of class `kind` to messages of class `message` and back, as fast as code written by hand.

    `sent`, `taken`: the number of characters to keep of texts in messages, and in values read from messages; what
    cannot be printed is escaped; 0: texts stay as they are. `part`: the message may have more fields than the value.
    Raises TypeError if fields do not match.
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
        # `fill` reuses a message, which takes half the time of making a new one.
        self.fill: Callable[[M, V], None] = names["fill"]
        self.to_wire: Callable[[V], M] = names["to_wire"]
        self.from_wire: Callable[[M], V] = names["from_wire"]

    def _field(self, name: str, hint: Any, field: Any, names: dict[str, Any]) -> tuple[list[str], str]:
        """Return the lines that fill a field of message `m` from value `v`, and the expression that reads it."""
        optional = get_origin(hint) in (Union, types.UnionType)
        inner = next(each for each in get_args(hint) if each is not types.NoneType) if optional else hint
        several = get_origin(inner) in (tuple, list)
        if field.enum_type is not None:
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", field.enum_type.name).upper() + "_"
            words = {each.name.removeprefix(prefix).lower(): each.number for each in field.enum_type.values}
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
    """Return the names of the fields that messages have: the first ones, in the order of the class's arguments."""
    described = getattr(kind, "__dataclass_fields__", {})
    return [name for name in kind.__match_args__ if name not in described or described[name].compare]


class OneofCodec(Generic[V, M]):
    """Converts values of the classes of a union to messages with a oneof whose fields have the classes' names.

    A class without fields is a truth value there. `sent`, `taken`: as in `MessageCodec`. `codecs`: by class. Fields of
    the oneof without a class are ignored. Raises TypeError for a class without a field.
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
        """Write `value` to a message."""
        name, fill = self._fields[type(value)]
        if fill is None:
            setattr(message, name, True)
        else:
            fill(getattr(message, name), value)

    def to_wire(self, value: V) -> M:
        """Return a message with `value` alone."""
        message = self._message()
        self.fill(message, value)
        return message

    def from_wire(self, message: M) -> V | None:
        """Return the message's value; None if it has none, or one that this codec does not know."""
        name = message.WhichOneof(self._oneof)
        if name is None or name not in self._kinds:
            return None
        kind, read = self._kinds[name]
        return cast(V, kind()) if read is None else read(getattr(message, name))


# Characters of a reason, which a policy or a user's exception may make long. The log keeps fewer of a worker's.
REASON: Final = 2000
LOGGED_REASON: Final = 200

REQUESTS: Final = OneofCodec[protocol.StreamRequest, pb.SessionRequest](
    protocol.StreamRequest, pb.SessionRequest, sent=REASON, taken=LOGGED_REASON
)
COMMITS: Final = MessageCodec(protocol.Commit, pb.Commit)
EVENTS: Final = OneofCodec[protocol.Event, pb.SessionEvent](
    protocol.Event, pb.SessionEvent, sent=REASON, taken=REASON
)
SPECS: Final = MessageCodec(VariableSpec, model_pb2.VariableSpec)


def specs_to_wire(specs: Iterable[VariableSpec]) -> list[model_pb2.VariableSpec]:
    """Return the value of a `variables` field."""
    return [SPECS.to_wire(spec) for spec in specs]


def specs_from_wire(messages: Iterable[model_pb2.VariableSpec]) -> tuple[VariableSpec, ...]:
    """Read a `variables` field. Raises PlanError for an unspecified or unknown kind; `make_plan` checks the rest."""
    for message in messages:
        if message.kind not in (model_pb2.VARIABLE_KIND_TRAINABLE, model_pb2.VARIABLE_KIND_STATE):
            raise PlanError(
                f"variable {message.name!r}: expected kind TRAINABLE or STATE, got number {int(message.kind)}"
            )
    return tuple([SPECS.from_wire(message) for message in messages])
