"""Seeded changes to messages, bytes and sequences: what a broken or a hostile peer may send instead."""

import math
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

WHOLE = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1)
REAL = (0.0, -0.0, -1.0, 0.5, 1e-320, 1e9, 1e300, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf)
TEXT = (
    "",
    "\x1b[2J\x1b[1;31mERROR",
    "line\n2026-01-01 ps-server ERROR forged",
    "\r\x00\x07\x7f",
    "\u202egnp.exe",
    "%s%s%n{0}{job}",
    "[bold red]markup[/]",
    "../../etc/passwd",
    "é" * 70,
    "w" * 65,
    "x" * 3000,
)
LARGEST = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
# Elements that are added to a repeated field at once.
MANY = (1, 2, 70, 300)


class Mutator:
    """Draws from `chance`. `words`: texts that mean something here, such as the names of others."""

    def __init__(self, chance: random.Random, words: Sequence[str] = ()) -> None:
        self._chance = chance
        self.words = list(words)

    def message(self, message: Message, changes: int = 0) -> None:
        """Change fields of `message`, or of messages in it: `changes`, or one to three."""
        fields = message.DESCRIPTOR.fields
        for _ in range(changes or self._chance.choice((1, 1, 1, 2, 3)) if fields else 0):
            self._field(message, self._chance.choice(fields))

    def _field(self, message: Message, field: FieldDescriptor) -> None:
        chance = self._chance
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._entry(getattr(message, field.name))
        elif field.is_repeated:
            self._elements(getattr(message, field.name), field)
        elif field.message_type is not None:
            if field.message_type.fields and chance.random() < 0.8:
                self._field(getattr(message, field.name), chance.choice(field.message_type.fields))
            elif chance.random() < 0.5:
                message.ClearField(field.name)
            else:
                getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, self._value(field, getattr(message, field.name)))

    def _entry(self, entries: Any) -> None:
        """Of a map from names to numbers; the only kind that there is."""
        for _ in range(self._chance.choice(MANY)):
            entries[f"{self.text()[:200]}{self._chance.randrange(1000)}"] = self._chance.choice(REAL)

    def _elements(self, elements: Any, field: FieldDescriptor) -> None:
        chance, kind = self._chance, chance_of(self._chance)
        if kind == "clear":
            del elements[:]
        elif kind == "repeat" and len(elements):
            for _ in range(chance.choice(MANY)):
                elements.append(elements[chance.randrange(len(elements))])
        elif field.message_type is None:
            elements.extend(self._value(field, None) for _ in range(chance.choice(MANY)))
        elif len(elements) and kind == "inside":
            self.message(elements[chance.randrange(len(elements))], 1)
        else:
            self.message(elements.add(), 1)

    def _value(self, field: FieldDescriptor, before: Any) -> Any:
        chance, kind = self._chance, field.cpp_type
        if kind in LARGEST:
            least, most = LARGEST[kind]
            near = [before - 1, before + 1, before * 2] if before is not None else []
            return min(max(chance.choice([*WHOLE, *near, -1, -(2**40)]), least), most)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return chance.choice(REAL)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.data(before) if before and chance.random() < 0.5 else self.noise()
        return self.text()

    def text(self) -> str:
        return self._chance.choice([*TEXT, *self.words])

    def noise(self) -> bytes:
        """Random bytes, of few or many."""
        return self._chance.randbytes(self._chance.choice((0, 1, 5, 15, 16, 17, 64, 65, 1000, 10_000)))

    def data(self, data: bytes) -> bytes:
        """Other bytes: some are flipped, cut off, put in, or all of them are."""
        chance = self._chance
        if not data or chance.random() < 0.1:
            return self.noise()
        at, cut = chance.randrange(len(data)), bytearray(data)
        match chance.choice(("flip", "flip", "cut", "insert", "repeat", "byte")):
            case "flip":
                cut[at] ^= 1 << chance.randrange(8)
            case "cut":
                del cut[at:]
            case "insert":
                cut[at:at] = chance.randbytes(chance.choice((1, 2, 10)))
            case "repeat":
                cut += cut[at:]
            case "byte":
                cut[at] = chance.choice((0, 0x7F, 0x80, 0xFF))
        return bytes(cut)

    def sequence(self, messages: Sequence[bytes]) -> list[bytes]:
        """Other messages: one is missing, repeated, in another's place, changed, or the stream ends early."""
        chance, found = self._chance, list(messages)
        if not found:
            return [self.noise()]
        one, other = chance.randrange(len(found)), chance.randrange(len(found))
        match chance.choice(("drop", "repeat", "swap", "change", "change", "cut", "insert")):
            case "drop":
                del found[one]
            case "repeat":
                found[one:one] = [found[one]] * chance.choice((1, 2, 20))
            case "swap":
                found[one], found[other] = found[other], found[one]
            case "change":
                found[one] = self.data(found[one])
            case "cut":
                del found[one:]
            case "insert":
                found[one:one] = [self.noise()]
        return found


def chance_of(chance: random.Random) -> str:
    return chance.choice(("clear", "repeat", "extend", "extend", "inside"))
