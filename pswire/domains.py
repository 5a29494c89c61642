"""Domains: the values that a knob takes, as data: a kind, and bounds that may depend on other numbers.

Standard library only.
"""

import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal, cast

Kind = Literal["number", "integer", "flag", "word", "numbers", "integers", "words"]
Names = Mapping[str, float]

NOUNS: Final[Mapping[Kind, str]] = {
    "number": "a number",
    "integer": "a whole number",
    "flag": "true or false",
    "word": "a word",
    "numbers": "a list of numbers",
    "integers": "a list of whole numbers",
    "words": "a list of words",
}
LARGEST_INTEGER: Final = 2**63 - 1
LARGEST_SINGLE: Final[float] = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
LARGEST_DOUBLE: Final = sys.float_info.max


def in_range(value: object, least: float = -LARGEST_DOUBLE, most: float = LARGEST_DOUBLE) -> bool:
    """Return whether this is a number from `least` to `most`, and no truth value.

    For whatever comes from a file, a person or another process. It is compared before anything computes with it: no
    float is as large as a whole number of 400 digits. NaN is in no range.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True, slots=True)
class BoundFormula:
    """A bound that depends on other numbers: the sum of ``coefficient * name``, plus a constant, over a divisor.

    Names are those of other knobs and those that the reader of a table supplies, such as `workers`. Formulas are
    written with operators: ``(named("workers") - 1) // 2``. A divisor rounds down.
    """

    terms: tuple[tuple[str, int], ...]
    constant: int = 0
    divisor: int = 1

    def __add__(self, other: "BoundFormula | int") -> "BoundFormula":
        if isinstance(other, int):
            return BoundFormula(self.terms, self.constant + other)
        return BoundFormula(self.terms + other.terms, self.constant + other.constant)

    def __sub__(self, other: "BoundFormula | int") -> "BoundFormula":
        if isinstance(other, int):
            return self + -other
        return self + BoundFormula(tuple((name, -factor) for name, factor in other.terms), -other.constant)

    def __floordiv__(self, divisor: int) -> "BoundFormula":
        return BoundFormula(self.terms, self.constant, divisor)

    def value(self, names: Names) -> float:
        total = sum(factor * names[name] for name, factor in self.terms) + self.constant
        return total if self.divisor == 1 else total // self.divisor

    def __str__(self) -> str:
        pieces = [
            ("-" if f < 0 else "+", name if abs(f) == 1 else f"{abs(f)} {name}") for name, f in self.terms
        ]
        if self.constant:
            pieces.append(("-" if self.constant < 0 else "+", str(abs(self.constant))))
        text = " ".join(f"{sign} {piece}" for sign, piece in pieces).removeprefix("+ ")
        if self.divisor == 1:
            return text
        return f"({text}) / {self.divisor}" if len(pieces) > 1 else f"{text} / {self.divisor}"


Bound = float | BoundFormula


def named(name: str) -> BoundFormula:
    """Return the value of that name, as a formula."""
    return BoundFormula(((name, 1),))


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that a knob takes: those of a kind within bounds, or one of `choices` (words).

    `at_least` and `at_most` belong to the range, `above` and `below` do not. Bounds of a list hold for every entry.
    """

    kind: Kind
    at_least: Bound | None = None
    above: Bound | None = None
    at_most: Bound | None = None
    below: Bound | None = None
    choices: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[tuple[str, Bound], ...]:
        """The bounds, each with its sign."""
        pairs = ((">=", self.at_least), (">", self.above), ("<=", self.at_most), ("<", self.below))
        return tuple((sign, bound) for sign, bound in pairs if bound is not None)

    @property
    def range(self) -> str:
        """The bounds or choices in words, such as ``>= 0 and < 1``; empty if there are none."""
        if self.choices:
            return ", ".join(self.choices)
        return " and ".join(f"{sign} {_short(bound)}" for sign, bound in self.bounds)

    def to_json(self) -> dict[str, object]:
        """Return kind, bounds and choices, without those that are absent; a formula as its text."""
        limits = {
            "at_least": self.at_least,
            "above": self.above,
            "at_most": self.at_most,
            "below": self.below,
        }
        found: dict[str, object] = {"type": self.kind}
        found |= {key: _plain(bound) for key, bound in limits.items() if bound is not None}
        return found | ({"choices": list(self.choices)} if self.choices else {})

    def describe(self, names: Names | None = None) -> str:
        """Describe the domain, as ``a number >= 0 and < 1``; with `names`, the value of each formula beside it."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = " and ".join(f"{sign} {_short(bound, names)}" for sign, bound in self.bounds)
        each = ", each" if self.kind in ("numbers", "integers") and bounds else ""
        return f"{NOUNS[self.kind]}{each} {bounds}".rstrip()

    def expected(self, names: Names | None = None, value: object = None) -> str:
        """Describe the domain for an error: from end to end, with the implied end if `value` is beyond it."""
        low, high = self.at_least, self.at_most
        whole = self.kind in ("integer", "integers")
        if whole and low is not None and high is None and _beyond(value):
            high = LARGEST_INTEGER
        plain = all(isinstance(each, int | float) for each in (low, high))
        if self.choices or not plain or self.above is not None or self.below is not None:
            return self.describe(names)
        each = ", each" if self.kind in ("numbers", "integers") else ""
        return f"{NOUNS[self.kind]}{each} from {_plainly(low)} to {_plainly(high)}"

    def accept(self, value: object, names: Names, *, single: bool) -> Any:
        """Return `value` as a plain bool, str, int, float or tuple; None if it is outside the domain."""
        if self.kind == "flag":
            return value if isinstance(value, bool) else None
        if self.kind == "word":
            return value if isinstance(value, str) and (not self.choices or value in self.choices) else None
        if self.kind in ("number", "integer"):
            return self._scalar(value, names, single=single)
        if not isinstance(value, (list, tuple)):
            return None
        if self.kind == "words":
            texts = all(isinstance(entry, str) and entry for entry in value)
            return tuple(value) if texts else None
        entries = [self._scalar(entry, names, single=single) for entry in value]
        return None if None in entries else tuple(entries)

    def _scalar(self, value: object, names: Names, *, single: bool) -> int | float | None:
        # A bool is an int in Python, but not to a user.
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        plain: int | float = int(value) if isinstance(value, Integral) else float(value)
        # Compare before converting to float, because a huge int would overflow. NaN fails every comparison.
        if self.kind in ("integer", "integers"):
            fits = isinstance(plain, int) and abs(plain) <= LARGEST_INTEGER
            return plain if fits and self._within(to_single(plain) if single else plain, names) else None
        largest = LARGEST_SINGLE if single else LARGEST_DOUBLE
        if not abs(plain) <= largest:
            return None
        return float(plain) if self._within(to_single(plain) if single else plain, names) else None

    def _within(self, value: float, names: Names) -> bool:
        limits = {sign: _value(bound, names) for sign, bound in self.bounds}
        return (
            value >= limits.get(">=", -math.inf)
            and value > limits.get(">", -math.inf)
            and value <= limits.get("<=", math.inf)
            and value < limits.get("<", math.inf)
        )


def _beyond(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not abs(value) <= LARGEST_INTEGER  # type: ignore[operator]


def _plainly(bound: object) -> str:
    return f"{bound:.0f}" if isinstance(bound, float) and bound.is_integer() else str(bound)


def to_single(value: float) -> float:
    """Return `value` rounded to float32; it must be within float32's range."""
    return cast(float, struct.unpack("<f", struct.pack("<f", value))[0])


def _value(bound: Bound, names: Names) -> float:
    return bound.value(names) if isinstance(bound, BoundFormula) else bound


def _short(bound: Bound, names: Names | None = None) -> str:
    if not isinstance(bound, BoundFormula):
        return f"{bound:g}"
    return str(bound) if names is None else f"{bound} ({bound.value(names):g})"


def _plain(bound: Bound) -> object:
    return str(bound) if isinstance(bound, BoundFormula) else bound
