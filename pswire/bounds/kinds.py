"""Kinds of bounds, and the ones that many fields share, with the reasons."""

import math
from dataclasses import dataclass
from typing import Final


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
    """At most `most` characters; only printable ones if `printable`, and only ASCII if `plain`."""

    most: int
    printable: bool = True
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """At most `most` bytes."""

    most: int


@dataclass(frozen=True, slots=True)
class Many:
    """At most `most` elements (entries of a map). `each`: the bound of an element that is no message."""

    most: int
    each: "Bound | None" = None
    key: Text | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """A message, bounded by its own rows."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A truth value or an enum: its type is its bound; an unknown enum number is refused where it is read."""


Bound = Whole | Real | Text | Data | Many | Nested | Closed
"""What a field may hold."""


@dataclass(frozen=True, slots=True)
class Row:
    """The bound of one field, and why it is that."""

    message: str
    field: str
    bound: Bound
    why: str


# Counters that every process adds up stay far from 2**63, the range of a signed sum and of a file's numbers.
COUNTER: Final = Whole(2**53 - 1)
COUNTED = "counted one by one; JSON readers hold whole numbers up to 2**53 exactly"
NAME: Final = Text(64)
NAMED = "stands in logs, paths and sentences"
REASON: Final = Text(4000, printable=False)
SAID = "a sentence or a traceback's last lines; escaped where it is printed"
SECRET: Final = Data(64)
PROOF = "a digest or a token of at most 64 bytes"
WORKERS: Final = 2**20
SERVERS: Final = 2**12
VARIABLES: Final = 2**14
RANK: Final = 64
ELEMENTS: Final = 2**40
PAYLOAD: Final = Whole(8 * ELEMENTS)
FLAG: Final = Closed()
SUB: Final = Nested()
PART = "a message with rows of its own"
TYPED = "its type allows nothing else"
FACTOR: Final = Real()
NUMBER = "a finite factor; anything else would make every weight NaN"
SECONDS: Final = Real(1e9, 0.0)
DURATION = "seconds of one ticket; 1e9 are 31 years"
FINGERPRINT: Final = Text(128, plain=True)
HASHED = "a digest in letters and digits; compared in constant time, which takes ASCII only"
JSON: Final = Text(64 * 1024)
CONFIG = "a declarative configuration: names and numbers"


def rows(message: str, *rows: tuple[str, Bound, str]) -> tuple[Row, ...]:
    return tuple(Row(message, field, bound, why) for field, bound, why in rows)
