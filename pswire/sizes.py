"""Sizes of memory as people write them."""

from typing import Final

MIB: Final = 2**20
_UNITS: Final = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(text: str) -> int:
    """Bytes of "1GiB", "512 MiB" or a plain number. Raises ValueError."""
    number = text.strip().rstrip("abgiktmABGIKTM")
    unit = text.strip()[len(number) :].upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError) as error:
        raise ValueError(f"expected a size such as 1GiB or 512MiB, got {text!r}") from error
    if size < MIB:
        raise ValueError(f"expected at least 1MiB, got {text!r}")
    return size
