"""What is dealt: the terms that a job's workers agree on, and one ticket's part of a unit."""

from dataclasses import dataclass
from typing import Final

from pswire import protocol
from pswire.values import value

# Bounds of what a worker may say; numbers of batches stay far from what JSON readers hold exactly.
MOST_UNITS: Final = 2**40
MOST_EPOCHS: Final = 2**20
MOST_BATCHES: Final = 2**32
MOST_DESCRIPTION: Final = 1024

# A part that came to nothing so often is skipped: see `WorkQueue.lose`.
MOST_LOSSES: Final = 3


class WorkError(ValueError):
    """Terms that make no sense. The text says what was expected and what was got."""


@value
class WorkTerms:
    """`units` per epoch, for `epochs` epochs. `batches`: of each unit, 0 where only the data shows it.

    `data`: what the units are made of, as the workers describe it; two workers that say different things
    do not belong to one job. `apart`: an epoch's units are dealt when those of the epoch before have counted.
    """

    units: int
    epochs: int = 1
    batches: int = 0
    data: str = ""
    apart: bool = False

    def check(self) -> None:
        """Raises WorkError for numbers beyond their bounds."""
        for name, least, most in (
            ("units", 1, MOST_UNITS),
            ("epochs", 1, MOST_EPOCHS),
            ("batches", 0, MOST_BATCHES),
        ):
            found = getattr(self, name)
            if not least <= found <= most:
                raise WorkError(f"work units: expected {name} from {least} to {most}, got {found}")
        if len(self.data) > MOST_DESCRIPTION:
            raise WorkError(
                f"work units: expected a description of at most {MOST_DESCRIPTION} characters, got {len(self.data)}"
            )

    def __str__(self) -> str:
        each = f" of {self.batches} batches" if self.batches else ""
        said = f" ({self.data})" if self.data else ""
        apart = ", one after the other" if self.apart else ""
        return f"{self.units} units{each} for {self.epochs} epochs{apart}{said}"


@value
class UnitPart(protocol.UnitPart):
    """What one ticket takes of a unit.

    `losses`: how often it was dealt before and came to nothing by itself. `lost_at`: the version when it was dropped
    last; -1 before that.
    """

    losses: int = 0
    lost_at: int = -1


@dataclass(slots=True)
class Rest:
    """Parts of a unit from `part` on, up to `stop` (0: up to where the data ends)."""

    epoch: int
    unit: int
    part: int = 0
    stop: int = 0
    losses: int = 0
    lost_at: int = -1

    def take(self) -> UnitPart:
        """The next part."""
        taken = UnitPart(self.epoch, self.unit, self.part, self.losses, self.lost_at)
        self.part += 1
        return taken

    @property
    def over(self) -> bool:
        """All parts that it is known to have are taken."""
        return bool(self.stop) and self.part >= self.stop
