"""Between values (small dataclasses) and protobuf messages, compiled by field name.

A value and its message have fields of the same names. A field of the value holds a number, text, truth value or bytes;
one of these or None, where the message's field is optional; a value or None; a tuple of values; or a word of an
enumeration, which has it in capitals behind a prefix (``FATE_APPLIED`` is "applied").
"""

import types
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf import message_factory
from google.protobuf.message import Message

V = TypeVar("V")
M = TypeVar("M", bound=Message)


class MessageCodec(Generic[V, M]):
    """Converts values of class `kind` to messages of class `message` and back, as fast as code written by hand.

    A class without fields is a message's bool field, and has no codec. Raises TypeError where fields do not match.
    """

    def __init__(self, kind: type[V], message: type[M]) -> None:
        self.kind, self.message = kind, message
        names: dict[str, Any] = {"Kind": kind, "Message": message}
        hints = get_type_hints(kind)
        described = message.DESCRIPTOR.fields_by_name
        own = [each.name for each in fields(kind)]  # type: ignore[arg-type]
        if set(own) != set(described):
            raise TypeError(f"{kind.__name__} has the fields {own}, its message {list(described)}")
        pairs = [self._field(name, hints[name], described[name], names) for name in own]
        there, back = (", ".join(texts) for texts in zip(*pairs, strict=True)) if pairs else ("", "")
        code = f"def to_wire(v): return Message({there})\ndef from_wire(m): return Kind({back})"
        exec(code, names)  # noqa: S102  (of the names of our own fields)
        self.to_wire: Callable[[V], M] = names["to_wire"]
        self.from_wire: Callable[[M], V] = names["from_wire"]

    def _field(self, name: str, hint: Any, field: Any, names: dict[str, Any]) -> tuple[str, str]:
        """Return how a field is given to a message, and how to a value."""
        optional = get_origin(hint) in (Union, types.UnionType)
        inner = next(each for each in get_args(hint) if each is not types.NoneType) if optional else hint
        if field.enum_type is not None:
            prefix = f"{name.upper()}_"
            words = {each.name.removeprefix(prefix).lower(): each.number for each in field.enum_type.values}
            names[f"number_{name}"], names[f"word_{name}"] = words, {n: word for word, n in words.items()}
            return f"{name}=number_{name}[v.{name}]", f"word_{name}[m.{name}]"
        if field.message_type is None:
            got = f"m.{name} if m.HasField({name!r}) else None" if optional else f"m.{name}"
            return f"{name}=v.{name}", got
        several = get_origin(hint) is tuple
        codec = MessageCodec[Any, Any](
            get_args(hint)[0] if several else inner, message_factory.GetMessageClass(field.message_type)
        )
        names[f"to_{name}"], names[f"from_{name}"] = codec.to_wire, codec.from_wire
        if several:
            return f"{name}=[to_{name}(e) for e in v.{name}]", f"tuple([from_{name}(e) for e in m.{name}])"
        given = f"None if v.{name} is None else to_{name}(v.{name})"
        return f"{name}={given}", f"from_{name}(m.{name}) if m.HasField({name!r}) else None"
