"""Work units: the terms that a job's workers agree on, and one ticket's part of a unit."""

from dataclasses import dataclass
from typing import Final

from pswire import protocol
from pswire.values import value

# Bounds of the terms; batch numbers stay far below the largest exact integer of JSON readers.
MAX_UNITS: Final = 2**40
MAX_EPOCHS: Final = 2**20
MAX_BATCHES: Final = 2**32
MAX_DESCRIPTION: Final = 1024

# The number of losses after which a part is skipped: see `WorkQueue.lose`.
MAX_LOSSES: Final = 3


class WorkError(ValueError):
    """Terms out of range. The text says what was expected and what was found."""


@value
class WorkTerms:
    """`units` per epoch, for `epochs` epochs. `batches`: per unit; 0: the data shows it.

    `last`: batches of an epoch's last unit, if it has fewer than the others; 0: as many as they.
    `data`: the workers' description of the units. Workers with different descriptions do not belong to one job.
    `apart`: an epoch's units are dealt only when those of the epoch before are counted.
    """

    units: int
    epochs: int = 1
    batches: int = 0
    data: str = ""
    apart: bool = False
    last: int = 0

    def check(self) -> None:
        """Raise WorkError for numbers out of bounds."""
        for name, least, most in (
            ("units", 1, MAX_UNITS),
            ("epochs", 1, MAX_EPOCHS),
            ("batches", 0, MAX_BATCHES),
            ("last", 0, self.batches),
        ):
            found = getattr(self, name)
            if not least <= found <= most:
                raise WorkError(f"work units: expected {name} from {least} to {most}, got {found}")
        if len(self.data) > MAX_DESCRIPTION:
            raise WorkError(
                f"work units: expected a description of at most {MAX_DESCRIPTION} characters, got {len(self.data)}"
            )

    def __str__(self) -> str:
        each = f" of {self.batches} batches" if self.batches else ""
        said = f" ({self.data})" if self.data else ""
        apart = ", one after the other" if self.apart else ""
        return f"{self.units} units{each} for {self.epochs} epochs{apart}{said}"


@value
class TicketPart(protocol.UnitPart):
    """One ticket's part of a unit.

    `losses`: how often it was lost (see `WorkQueue.lose`). `lost_at`: the version at its last drop; -1: never dropped.
    """

    losses: int = 0
    lost_at: int = -1


@dataclass(slots=True)
class Rest:
    """The rest of a unit: parts from `part` up to `stop` (0: up to the end of the data)."""

    epoch: int
    unit: int
    part: int = 0
    stop: int = 0
    losses: int = 0
    lost_at: int = -1

    def take(self) -> TicketPart:
        """Take the next part."""
        taken = TicketPart(self.epoch, self.unit, self.part, self.losses, self.lost_at)
        self.part += 1
        return taken

    @property
    def over(self) -> bool:
        """Whether all of its known parts are taken."""
        return bool(self.stop) and self.part >= self.stop
