"""How large the numbers can become that one update leaves behind: bounds that hold whatever the gradient's numbers are.

Every rule has a method `bounds`. It takes bounds on the magnitude of the gradient, of the weights and of all slots, and
gives those after one update, with the largest that any intermediate result has. `psserver.optimizers.formulas` derives
them from the rule's `step`; a rule for which that is too loose has its own. All follow from |a + b| <= |a| + |b|, and
from three facts:

- a running mean ``m + (g - m) (1 - beta)`` lies between m and g, so it is within the larger one's magnitude;
- a sum of squares is not negative, so that a root of it with epsilon is at least epsilon's share;
- rounding to float32 changes a result by 2**-24 of it at most, and an update has fewer than 32 operations in a row:
  `ROUNDING` makes up for them. Below the least normal float32 results are only closer to zero, which matters
  for divisors alone: those that may be so small count as zero, and the bound is infinite (`over`).

A bound that is infinite, or beyond `LIMIT`, says that nobody knows. Far below the largest float32 (2**128), the limit
leaves room for sums of two.
"""

import math
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

LIMIT: Final = 2.0**100
ROUNDING: Final = 1 + 2.0**-18
# Divisors below it may be rounded to zero, or lose most of their digits.
LEAST: Final = 2.0**-120
# The least float32 above zero.
SMALLEST: Final = 2.0**-149
# A norm is at most that many times the largest element: the root of the most elements that a plan has.
NORM: Final = 2.0**20

Magnitudes = Mapping[str, float]
"""Bounds by name: "x" for the weights, and every slot."""
Bounds = tuple[dict[str, float], float]
"""After an update: of the weights and every slot; and the largest of what is computed on the way."""


class Bounded(Protocol):
    """A rule, as far as this module is concerned."""

    def bounds(self, rate: float, step: int, g: float, b: Magnitudes) -> Bounds:
        """After update number `step` at `rate`, by a gradient within `g`, of what was within `b`. May overflow."""


def after(
    rule: Bounded, rate: np.float32, step: int, gradient: float, before: Magnitudes
) -> dict[str, float] | None:
    """Bounds after update number `step` at `rate`, by a gradient within `gradient`; None where nobody knows."""
    try:
        found, peak = rule.bounds(float(rate), step, gradient, before)
    except OverflowError:
        return None
    grown = {name: value * ROUNDING for name, value in found.items()}
    # NaN is not below anything.
    return grown if all(value <= LIMIT for value in (*grown.values(), peak * ROUNDING)) else None


def over(value: float, divisor: float) -> float:
    """The quotient, or infinity where the divisor may be zero in float32."""
    return value / divisor if divisor > LEAST else math.inf


def start_of(decay: float, rate: float, x: float) -> tuple[float, float]:
    """What the update starts from, with decay or (variables that are left out) without; and the largest on the way."""
    return x * max(1.0, abs(1.0 - decay * rate)), x * (1.0 + decay) * (1.0 + rate)
