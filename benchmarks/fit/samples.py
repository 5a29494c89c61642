"""Rounds of `fit` of several ways to train, in turns: what a step takes, and ratios within each round."""

import statistics
from dataclasses import dataclass, field


@dataclass
class Samples:
    """Of each round of `steps`: seconds of wall clock, of this process's CPU, and of its children's (the server)."""

    steps: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def per_step(self) -> str:
        """Medians, in milliseconds."""
        wall = f"{self._of(self.wall):7.2f} ms a step"
        spent = [
            f"{name} {self._of(each):.2f}"
            for name, each in (("CPU", self.cpu), ("server", self.server))
            if each
        ]
        return wall + (f" ({', '.join(spent)})" if spent else "")

    def _of(self, seconds: list[float]) -> float:
        return statistics.median(seconds) / self.steps * 1e3


def ratio(slow: Samples, fast: Samples) -> str:
    """Of the samples per second, within each round: median and range."""
    found = [a / b for a, b in zip(slow.wall, fast.wall, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
