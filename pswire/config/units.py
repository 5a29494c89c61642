"""Texts with units: sizes of memory ("1GiB"), and intervals ("500 versions", "2 epochs", "30 s")."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
_UNITS: Final = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Parse "1GiB", "512 MiB" or a plain number to bytes. Raises ValueError."""
    number = text.strip().rstrip("abgiktmABGIKTM")
    unit = text.strip()[len(number) :].upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError) as error:
        raise ValueError(f"expected a size such as 1GiB or 512MiB, got {text!r}") from error
    if size < MIB:
        raise ValueError(f"expected at least 1MiB, got {text!r}")
    return size


# Each unit of an interval: the spelling of its number, and an example.
_NUMBERS: Final = {
    "versions": ("[0-9]{1,15}", '"500 versions"'),
    "epochs": ("[0-9]{1,9}", '"1 epoch"'),
    "s": (r"[0-9]{1,9}(?:\.[0-9]{1,6})?", '"30 s"'),
}


class IntervalError(ValueError):
    """A text that is no interval in one of the expected units."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of versions, epochs or seconds. `unit`: "versions", "epochs" or "s"."""

    amount: float
    unit: str

    def of(self, unit: str) -> float:
        """Return the amount if it is in this unit, else 0."""
        return self.amount if self.unit == unit else 0


def parse_interval(text: str, units: Collection[str]) -> Interval:
    """Parse a number above 0 and one of `units`, with or without a space between them.

    Raises IntervalError, which gives an example for each unit.
    """
    for unit in units:
        singular = unit.rstrip("s") or unit
        found = re.fullmatch(rf"({_NUMBERS[unit][0]}) ?(?:{unit}|{singular})", text)
        if found is not None and float(found[1]) > 0:
            return Interval(float(found[1]) if unit == "s" else int(found[1]), unit)
    *first, last = (_NUMBERS[unit][1] for unit in units)
    either = f"{', '.join(first)} or {last}" if first else last
    raise IntervalError(f"expected {either}, or another number, got {text!r}")
