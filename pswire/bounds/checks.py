"""Checks compiled from the bounds: one function for each kind of message."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import cache
from itertools import count
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pswire.bounds.kinds import Bound, Closed, Data, FieldBound, Many, Nested, Real, Text, Whole, declared


class BoundError(ValueError):
    """A field of a message is beyond its bound. The text names both."""


TABLE: Final[tuple[FieldBound, ...]] = tuple(declared())
"""Every field of every message, in the order of the protos."""
BOUNDS: Final[Mapping[tuple[str, str], FieldBound]] = {(row.message, row.field): row for row in TABLE}
"""The rows of `TABLE` by message and field."""

Check = Callable[[Any], None]
_LARGEST: Final = sys.float_info.max
_UNSIGNED: Final = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def check(message: Message) -> None:
    """Raise BoundError for the first field of `message`, or of a message inside it, that is beyond its bound."""
    checker(message.DESCRIPTOR)(message)


@cache
def checker(kind: Descriptor) -> Check:
    """Return `check` for one kind of message. Callers on the path of every step keep the result.

    It is compiled as `dataclasses` compile an `__init__`, because a loop over fields takes several times as long.
    Nested messages are checked in the same function. A value within its bound passes without a call; otherwise the
    field's own test decides and words the error.
    """
    compiler = _Compiler()
    compiler.message(kind, "message", 1)
    names = compiler.names
    exec("\n".join(["def run(message):", *compiler.lines, "    return None"]), names)  # noqa: S102  (of the table's own names and numbers)
    run: Check = names["run"]
    return run


class _Compiler:
    """The source of one function: `lines` of its body, and the `names` it uses. No message of ours contains itself."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._numbers = count()

    def message(self, kind: Descriptor, of: str, depth: int) -> None:
        """Add the checks of the message in the variable `of`."""
        for field in kind.fields:
            if field.containing_oneof is None:
                self._field(kind, field, of, depth)
        for choice in kind.oneofs:
            if len(choice.fields) == 1:
                # An "optional" field is a oneof with one field.
                self._field(kind, choice.fields[0], of, depth)
                continue
            which = self._name("which")
            self._line(depth, f"{which} = {of}.WhichOneof({choice.name!r})")
            for word, field in zip(_first("if", "elif"), choice.fields, strict=False):
                self._line(depth, f"{word} {which} == {field.name!r}:")
                self._field(kind, field, of, depth + 1, present=True)
                self._line(depth + 1, "pass")

    def _field(
        self, kind: Descriptor, field: FieldDescriptor, of: str, depth: int, *, present: bool = False
    ) -> None:
        row = BOUNDS[kind.name, field.name]
        value, bound = f"{of}.{field.name}", row.bound
        inside = field.message_type
        match bound:
            case Closed():
                return
            case Nested() if inside is not None:
                if not present:
                    self._line(depth, f"if {of}.HasField({field.name!r}):")
                inner = self._name(field.name)
                self._line(depth + (not present), f"{inner} = {value}")
                self.message(inside, inner, depth + (not present))
                return
        test = self._name(f"test_{field.name}")
        self.names[test] = _test(f"{kind.name}.{field.name}", bound, field)
        match bound:
            case Many(most, None, None) if inside is not None:
                many, each = self._name("many"), self._name("each")
                self._line(depth, f"{many} = {value}")
                self._line(depth, f"if {many}:")
                self._line(depth + 1, f"if len({many}) > {most}: {test}({many})")
                self._line(depth + 1, f"for {each} in {many}:")
                self.message(inside, each, depth + 2)
                self._line(depth + 2, "pass")
            case Many(most, (Data() | Whole()) as element, None):
                many, each = self._name("many"), self._name("each")
                self._line(depth, f"{many} = {value}")
                self._line(depth, f"if {many}:")
                self._line(depth + 1, f"if len({many}) > {most}: {test}({many})")
                self._line(depth + 1, f"for {each} in {many}:")
                self._line(depth + 2, f"if {_unusual(element, each, field)}: {test}({many})")
            case Many():
                many = self._name("many")
                self._line(depth, f"{many} = {value}")
                self._line(depth, f"if {many}: {test}({many})")
            case Text():
                text = self._name("text")
                self._line(depth, f"{text} = {value}")
                self._line(depth, f"if {text} and not ({_usual(bound, text)}): {test}({text})")
            case _:
                self._line(depth, f"if {_unusual(bound, value, field)}: {test}({value})")

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _name(self, start: str) -> str:
        return f"{start}_{next(self._numbers)}"


def _first(one: str, others: str) -> Iterator[str]:
    yield one
    while True:
        yield others


def _usual(bound: Text, text: str) -> str:
    """Return an expression that is true if the text is within its bound."""
    tests = [f"len({text}) <= {bound.most}"]
    if bound.plain:
        tests.append(f"{text}.isascii()")
    if bound.printable:
        tests.append(f"{text}.isprintable()")
    return " and ".join(tests)


def _unusual(bound: Bound, value: str, field: FieldDescriptor) -> str:
    """Return an expression that is false if the value is within its bound. NaN and infinity may make it true, too."""
    match bound:
        case Whole(most, 0) if field.type in _UNSIGNED:
            return f"{value} > {most}"
        case Whole(most, least):
            return f"not {least} <= {value} <= {most}"
        case Real(most, least):
            # False for NaN and infinity.
            return f"not {max(least, -_LARGEST)!r} <= {value} <= {min(most, _LARGEST)!r}"
        case Data(most):
            return f"len({value}) > {most}"
    raise TypeError(f"expected a bound of one value, got {bound}")


def _test(where: str, bound: Bound, field: FieldDescriptor) -> Check:
    """Return the test that raises BoundError for a value of `field`."""
    match bound:
        case Whole():
            return _whole(where, bound)
        case Real():
            return _real(where, bound)
        case Text():
            return _text(where, bound)
        case Data(most):
            return _size(where, most, "bytes")
        case Many():
            return _many(where, bound, field)
        case Nested():
            return check
        case Closed():
            return _anything


def _anything(value: object) -> None:
    """Accept any value: a truth value, or an enum number that its reader looks up."""


def _many(where: str, bound: Many, field: FieldDescriptor) -> Check:
    size = _size(where, bound.most, "elements")
    key = _test(where, bound.key, field) if bound.key is not None else None
    each = check if bound.each is None else _test(where, bound.each, field)

    def run(values: Any) -> None:
        size(values)
        if key is not None:
            for name in values:
                key(name)
        for value in values if key is None else values.values():
            each(value)

    return run


def _whole(where: str, bound: Whole) -> Check:
    least, most = bound.least, bound.most

    def run(value: int) -> None:
        if not least <= value <= most:
            raise BoundError(f"{where}: expected {least} to {most}, got {value}")

    return run


def _real(where: str, bound: Real) -> Check:
    least, most, nonfinite = bound.least, bound.most, bound.nonfinite

    def run(value: float) -> None:
        # False for NaN and infinity.
        if least <= value <= most and value - value == 0:
            return
        if math.isfinite(value):
            raise BoundError(f"{where}: expected {least:g} to {most:g}, got {value:g}")
        if not nonfinite:
            raise BoundError(f"{where}: expected a finite number, got {value}")

    return run


def _text(where: str, bound: Text) -> Check:
    most, printable, plain = bound.most, bound.printable, bound.plain

    def run(value: str) -> None:
        if len(value) > most:
            raise BoundError(f"{where}: expected at most {most} characters, got {len(value)}")
        if printable and not value.isprintable():
            raise BoundError(f"{where}: expected printable characters, got {ascii(value[:80])}")
        if plain and not value.isascii():
            raise BoundError(f"{where}: expected ASCII characters, got {ascii(value[:80])}")

    return run


def _size(where: str, most: int, what: str) -> Check:
    def run(value: Sized) -> None:
        if len(value) > most:
            raise BoundError(f"{where}: expected at most {most} {what}, got {len(value)}")

    return run
