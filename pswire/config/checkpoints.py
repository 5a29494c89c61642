"""How often a checkpoint is taken, as text: "1000v" is every 1000 versions, "60s" every 60 seconds."""

import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9]{1,15})v|([0-9]{1,9}(?:\.[0-9]{1,6})?)s")


class EveryError(ValueError):
    """A text that says no such thing."""


@dataclass(frozen=True, slots=True)
class Every:
    """0: not for that reason; both 0: never."""

    versions: int = 0
    seconds: float = 0.0


def parse_every(text: str) -> Every:
    """ "": never. Raises EveryError."""
    if not text:
        return Every()
    found = _FORM.fullmatch(text)
    versions, seconds = found.groups() if found else (None, None)
    every = Every(int(versions or 0), float(seconds or 0))
    if every == Every():
        raise EveryError(f'expected versions such as "1000v" or seconds such as "60s", got {text!r}')
    return every
