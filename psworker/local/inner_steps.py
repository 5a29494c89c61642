"""Steps of an inner optimizer from some weights on."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psworker.local.inner import Inner, Slots

Floats = NDArray[np.float32]

# Elements that a sum looks at together, so that its float64 copies stay small.
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class InnerSteps:
    """Where they led (`x`), what the inner optimizer remembers, and the gradients on the way.

    `norm`: L2, of the last gradient; when that is not finite, the steps ended there
    and are of no use.
    """

    x: list[Floats]
    slots: Slots
    losses: tuple[float, ...]
    samples: int
    norm: float

    @property
    def loss(self) -> float:
        """The mean over the batches."""
        return math.fsum(self.losses) / len(self.losses) if all(map(math.isfinite, self.losses)) else math.nan

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)


def inner_steps(
    start: Sequence[Floats],
    slots: Slots,
    inner: Inner,
    trainable: Sequence[int],
    gradient: Callable[[list[Floats], Any], Any],
    batches: Iterable[Any],
) -> InnerSteps:
    """One step per batch. `start` and `slots` stay as they are.

    Per server the first `trainable` elements are moved by `inner`; the rest is
    state (moving averages, say) and takes the change that each batch made.
    """
    x, slots = [flat.copy() for flat in start], slots.copied()
    moved = [flat[:size] for flat, size in zip(x, trainable, strict=True)]
    losses: list[float] = []
    samples, norm = 0, math.nan
    for batch in batches:
        result = gradient(x, batch)
        losses.append(result.loss)
        samples, norm = samples + result.samples, result.norm
        if not math.isfinite(norm):
            break
        # Asked for once: it may have to be joined.
        flats = result.flats
        inner.step(moved, [flat[:size] for flat, size in zip(flats, trainable, strict=True)], slots)
        for flat, change, size in zip(x, flats, trainable, strict=True):
            flat[size:] += change[size:]
    return InnerSteps(x, slots, tuple(losses), samples, norm)


def norm_of(flats: Sequence[Floats], trainable: Sequence[int]) -> float:
    """L2 norm of the trainable parts of all servers, summed in float64 in a fixed order: equal bits everywhere."""
    total = 0.0
    for flat, size in zip(flats, trainable, strict=True):
        for start in range(0, size, BLOCK):
            block = flat[start : min(start + BLOCK, size)].astype(np.float64)
            total += float(np.add.reduce(block * block))
    return math.sqrt(total)
