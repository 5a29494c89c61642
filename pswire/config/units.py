"""Texts with units: sizes of memory ("1GiB"), and intervals between checkpoints ("1000v" versions, "60s" seconds)."""

import re
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


_FORM = re.compile(r"([0-9]{1,15})v|([0-9]{1,9}(?:\.[0-9]{1,6})?)s")


class EveryError(ValueError):
    """A text that is no interval."""


@dataclass(frozen=True, slots=True)
class Every:
    """An interval in versions, in seconds, or both. 0: not by this measure; both 0: never."""

    versions: int = 0
    seconds: float = 0.0


def parse_every(text: str) -> Every:
    """Parse an interval; an empty text means never. Raises EveryError."""
    if not text:
        return Every()
    found = _FORM.fullmatch(text)
    versions, seconds = found.groups() if found else (None, None)
    every = Every(int(versions or 0), float(seconds or 0))
    if every == Every():
        raise EveryError(f'expected versions such as "1000v" or seconds such as "60s", got {text!r}')
    return every
