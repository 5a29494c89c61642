"""Repeated measurements of one thing, and what may be said about them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Samples:
    """One number per repetition, in the order of the repetitions."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the range in which the middle half of the samples lies, as a share of the median."""
        if len(self.values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    def per(self, other: "Samples") -> "Samples":
        """Sample by sample, as a multiple of `other`'s of the same repetition: drift cancels."""
        return Samples(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))


def collected(values: Sequence[float]) -> Samples:
    """Raises ValueError for no samples at all."""
    if not values:
        raise ValueError("expected at least one sample, got none")
    return Samples(tuple(values))
