"""Bounds on the numbers that one update leaves behind, valid for any gradient within a given magnitude.

Every rule has a method `bounds`. It takes bounds on the magnitude of the gradient, the weights and all slots, and
returns those after one update, with the largest magnitude of any intermediate result. `psserver.optimizers.formulas`
derives them from the rule's `step`; a rule for which the derived bounds are too loose defines its own. All follow from
|a + b| <= |a| + |b| and from three facts:

- a running mean ``m + (g - m) (1 - beta)`` lies between m and g, so its magnitude is at most the larger one's;
- a sum of squares is not negative, so its root with epsilon is at least epsilon's share;
- rounding to float32 changes a result by at most 2**-24 of it, and an update has fewer than 32 operations in a row;
  `ROUNDING` covers them. Below the least normal float32 results are only closer to zero, which matters for divisors
  alone: a divisor that may be so small counts as zero, and the bound is infinite (`over`).

A bound that is infinite, or beyond `LIMIT`, means "unknown". The limit is far enough below the largest float32 (2**128)
to leave room for sums of two.
"""

import math
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

LIMIT: Final = 2.0**100
ROUNDING: Final = 1 + 2.0**-18
# A divisor below this may be rounded to zero, or lose most of its digits.
LEAST: Final = 2.0**-120
# The least float32 above zero.
SMALLEST: Final = 2.0**-149
# Bounds the ratio of a norm to the largest element: the root of the most elements that a plan has.
NORM: Final = 2.0**20

Magnitudes = Mapping[str, float]
"""Bounds by name: "x" for the weights, and every slot."""
Bounds = tuple[dict[str, float], float]
"""After an update: bounds by name, and the largest intermediate magnitude."""


class Bounded(Protocol):
    """The part of a rule that this module needs."""

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """Return bounds after update number `step` at `rate`, for a gradient within `g` and values within `b`.

        May raise OverflowError.
        """


def after(
    rule: Bounded, rate: np.float32, step: int, gradient: float, before: Magnitudes
) -> dict[str, float] | None:
    """Return bounds after update number `step` at `rate`, for a gradient within `gradient`; None if unknown."""
    try:
        found, peak = rule.bounds(float(rate), step, gradient, before)
    except OverflowError:
        return None
    grown = {name: value * ROUNDING for name, value in found.items()}
    # NaN fails "<=" too.
    return grown if all(value <= LIMIT for value in (*grown.values(), peak * ROUNDING)) else None


def over(value: float, divisor: float) -> float:
    """Return the quotient, or infinity if the divisor may be zero in float32."""
    return value / divisor if divisor > LEAST else math.inf


def start_of(decay: float, rate: float, x: float) -> tuple[float, float]:
    """Return bounds on the weights after decay (or without it, for excluded variables), and on the way there."""
    return x * max(1.0, abs(1.0 - decay * rate)), x * (1.0 + decay) * (1.0 + rate)
