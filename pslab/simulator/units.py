"""What a simulated worker works through under one ticket."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Unit:
    """The batches of one ticket."""

    batches: list[Any]
    # Number of the last of them.
    last: int
    # There is data behind them.
    more: bool
    # Their steps were taken before the grant, in `before` seconds.
    walked: bool = False
    before: float | None = None


def units(numbered: Iterator[tuple[int, Any]], steps: int) -> Iterator[Unit]:
    """Unit after unit of `steps` batches each; the last one may be shorter. One batch is read ahead.

    The division is that of `psworker.local.Portions`. Those are read batch by
    batch, during a ticket; here a ticket's batches may as well be read at once.
    """
    following = next(numbered, None)
    while following is not None:
        batches: list[Any] = []
        last = 0
        while following is not None and len(batches) < steps:
            last, batch = following
            batches.append(batch)
            following = next(numbered, None)
        yield Unit(batches, last, following is not None)
