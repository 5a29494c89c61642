"""What came of many schedules, counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

# One log in so many is read by `ps-lab check`, too.
SECOND_OPINION = 10

# What is counted, by what it is: "policies", for example, and the policy's name.
Played = Mapping[str, Mapping[str, int]]


@dataclass
class Tally:
    """`failed`: (seed, why)."""

    schedules: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failed: tuple[int, str] | None = None

    def add(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.count(other.counts)
        self.failed = self.failed or other.failed

    def count(self, played: Played) -> None:
        for what, counts in played.items():
            self.counts.setdefault(what, Counter()).update(counts)

    def lines(self) -> list[str]:
        """For people."""
        counted = [
            f"{what}: {', '.join(f'{name} {count}' for name, count in counts.most_common())}"
            for what, counts in self.counts.items()
        ]
        return [f"{self.schedules} schedules", *counted]


def tally_of(play: Callable[[int], Played], seeds: Iterable[int]) -> Tally:
    """Play them up to the first that fails, in whatever way."""
    tally = Tally()
    for seed in seeds:
        try:
            tally.count(play(seed))
        except Exception as error:
            tally.failed = (seed, f"{type(error).__name__}: {error}")
            return tally
        tally.schedules += 1
    return tally
