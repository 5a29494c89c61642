"""Aggregators: reduce the K gradients of an update, which lie side by side, to one.

The mean is not here: it is a running sum (psserver.shard.accumulator). These need all K at once. The order of
operations is part of the contract; coordinate-wise aggregators give the same bits on any number of servers. The result
overwrites the first of the K gradients; the others may be overwritten too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from psserver.policies import TensorParts

Floats = NDArray[np.float32]

# Numbers that are sorted at once: K rows stay in the cache.
SORTED = 1 << 17
# Up to this many rows, comparing neighbouring rows is faster than sorting columns.
NETWORK = 16
# Coordinates in one partial sum of distances. Part of the order of summation.
BLOCK = 1 << 15


class Aggregator(Protocol):
    def reduce(self, gradients: Sequence[Floats]) -> None:
        """Leave the aggregate of K >= 1 flat arrays of one length in the first of them."""
        ...


class MedianAggregator:
    """The middle value of each coordinate; for an even K, half the sum of the two middle values."""

    def reduce(self, gradients: Sequence[Floats]) -> None:
        middle = len(gradients) // 2
        for ordered, out in _sorted(gradients):
            if len(gradients) % 2:
                out[...] = ordered[middle]
            else:
                np.add(ordered[middle - 1], ordered[middle], out=out)
                np.divide(out, np.float32(2), out=out)


@dataclass(frozen=True, slots=True)
class TrimmedMeanAggregator:
    """The mean of each coordinate without its `trim` least and greatest values, added from the least up.

    Yin et al. 2018, definition 2, with b = `trim` values at either end. Needs K > 2 `trim`.
    """

    trim: int

    def reduce(self, gradients: Sequence[Floats]) -> None:
        left = len(gradients) - 2 * self.trim
        if left < 1:
            raise ValueError(
                f"trimmed-mean: expected more than {2 * self.trim} gradients, got {len(gradients)}"
            )
        for ordered, out in _sorted(gradients):
            out[...] = ordered[self.trim]
            for row in ordered[self.trim + 1 : self.trim + left]:
                np.add(out, row, out=out)
            np.divide(out, np.float32(left), out=out)


def _sorted(gradients: Sequence[Floats]) -> Iterator[tuple[Sequence[Floats], Floats]]:
    """Yield, for each block of coordinates, K rows with the least values first, and the place of the result."""
    size = gradients[0].size
    step = max(1, SORTED // len(gradients))
    with np.errstate(all="ignore"):
        for start in range(0, size, step):
            rows = np.stack([gradient[start : start + step] for gradient in gradients])
            # -0 and 0 compare equal, so either could be the middle one; adding 0 turns -0 into 0.
            np.add(rows, np.float32(0), out=rows)
            yield _in_order(rows), gradients[0][start : start + step]


def _in_order(rows: Floats) -> Sequence[Floats]:
    """Return the rows with every column sorted. Overwrites `rows`.

    Few rows go through a network of comparisons (odd-even transposition) of whole rows, which is ten times as fast as
    sorting columns one by one.
    """
    if len(rows) > NETWORK:
        rows.sort(axis=0)
        return list(rows)
    ordered, spare = list(rows), np.empty_like(rows[0])
    for turn in range(len(ordered)):
        for i in range(turn % 2, len(ordered) - 1, 2):
            lower, upper = ordered[i], ordered[i + 1]
            np.minimum(lower, upper, out=spare)
            np.maximum(lower, upper, out=upper)
            ordered[i], spare = spare, lower
    return ordered


@dataclass(frozen=True, slots=True)
class KrumAggregator:
    """Krum and Multi-Krum (Blanchard et al. 2017, sections 3 and 4) of n gradients, f = `byzantine` of them bad.

    The score of i is the sum, in float64, of its n - f - 2 least squared distances |g_i - g_j|^2, j != i. The `select`
    lowest scores win (at most n - f - 2; ties go to the first in the update), but none that is not finite. Several
    winners are added in the update's order and divided by their number; without any the aggregate is NaN, so that all
    elements are kept back. Needs n >= 2 f + 3.
    """

    byzantine: int
    select: int

    def reduce(self, gradients: Sequence[Floats]) -> None:
        if len(gradients) < 2 * self.byzantine + 3:
            raise ValueError(
                f"krum: expected at least {2 * self.byzantine + 3} gradients, got {len(gradients)}"
            )
        chosen = self.choose(gradients)
        out = gradients[0]
        if not chosen:
            out[...] = np.nan
        elif chosen[0] != 0:
            out[...] = gradients[chosen[0]]
        with np.errstate(all="ignore"):
            for number in chosen[1:]:
                np.add(out, gradients[number], out=out)
            if len(chosen) > 1:
                np.divide(out, np.float32(len(chosen)), out=out)

    def choose(self, gradients: Sequence[Floats]) -> list[int]:
        """Return the numbers of the winners, in the update's order."""
        nearest = len(gradients) - self.byzantine - 2
        distances = _squared_distances(gradients)
        # A gradient's distance to itself is 0, so it sorts first in its row.
        scores = np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1)
        order = [int(number) for number in np.argsort(scores, kind="stable") if np.isfinite(scores[number])]
        return sorted(order[: min(self.select, nearest)])


def _squared_distances(gradients: Sequence[Floats]) -> NDArray[np.float64]:
    """Return |g_i - g_j|^2 for all pairs, shape (K, K): squares of float64 differences, added block by block."""
    count = len(gradients)
    distances = np.zeros((count, count))
    for start in range(0, gradients[0].size, BLOCK):
        parts = [gradient[start : start + BLOCK].astype(np.float64) for gradient in gradients]
        for i in range(count):
            for j in range(i + 1, count):
                away = parts[i] - parts[j]
                np.multiply(away, away, out=away)
                distances[i, j] += np.add.reduce(away)
    return distances + distances.T


def state_aggregator(aggregator: Aggregator) -> Aggregator:
    """Return the aggregator of state deltas for an aggregator of gradients.

    A coordinate-wise one serves for both. A choice of whole gradients says nothing about the state that came with
    them, so state uses the median.
    """
    return MedianAggregator() if isinstance(aggregator, KrumAggregator) else aggregator


def build_aggregator(parts: TensorParts) -> Aggregator | None:
    """Build the aggregator that a policy names; None for the mean."""
    knobs = parts.knobs
    match parts.aggregator:
        case "mean":
            return None
        case "median":
            return MedianAggregator()
        case "trimmed-mean":
            return TrimmedMeanAggregator(int(knobs["trim"]))
        case "krum":
            return KrumAggregator(int(knobs["byzantine"]), int(knobs["select"]))
        case other:
            raise ValueError(f"a policy may name the aggregator {other!r}, but shards have none")
