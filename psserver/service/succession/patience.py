"""How often a server begins again: as long as it is of use. Pure: without clocks and processes."""

from dataclasses import dataclass

# Without a new version in between.
MOST_FRUITLESS = 10


@dataclass(slots=True)
class Patience:
    """`fruitless`: generations in a row that have made no version which none had made before."""

    version: int = 0
    fruitless: int = 0

    def ended(self, version: int) -> bool:
        """A generation has ended at that version; whether another one is worth its while."""
        if version > self.version:
            self.version, self.fruitless = version, 0
        else:
            self.fruitless += 1
        return self.fruitless < MOST_FRUITLESS
