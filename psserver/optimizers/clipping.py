"""Clip the mean gradient of an update before the rule sees it, as Keras' optimizers do: by value, by the norm of each
variable, or by the norm of all.

Numpy does it also where the rule is compiled, so that the bits are the same. Norms are summed in float64, block by
block in order. A gradient within the limit keeps its bits; otherwise it is multiplied by ``limit / norm``, rounded
once. A norm that is not finite makes the gradient NaN, as in Keras. No number grows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psserver.optimizers.blocks import Array
from psserver.optimizers.whole import Part, pieces, squares
from pswire.domains import Domain
from pswire.knobs import Knob

_LIMIT: Final = Domain("number", at_least=0)
KNOBS: Final = (
    Knob("clipvalue", _LIMIT, "limits each number of the mean gradient; 0: not at all", 0.0),
    Knob("clipnorm", _LIMIT, "limits the norm of the mean gradient of each variable; 0: not at all", 0.0),
    Knob(
        "global_clipnorm",
        _LIMIT,
        "limits the norm of the whole mean gradient; one server; 0: not at all",
        0.0,
    ),
)
"""At most one of them."""


@dataclass(frozen=True, slots=True)
class Clip:
    """`knob`: the name of one of `KNOBS`, and its value, above 0."""

    knob: str
    limit: float

    def run(self, gradient: Array, parts: Sequence[Part], factors: Sequence[np.float32]) -> None:
        """Multiply by all `factors` and clip, in place. `parts`: the variables of the gradient."""
        with np.errstate(all="ignore"):
            for block in pieces(gradient.size):
                for factor in factors:
                    np.multiply(gradient[block], factor, out=gradient[block])
            if self.knob == "clipvalue":
                limit = np.float32(self.limit)
                np.clip(gradient, -limit, limit, out=gradient)
            elif self.knob == "clipnorm":
                for part in parts:
                    self._shorten(gradient[part.start : part.stop])
            else:
                self._shorten(gradient)

    def _shorten(self, gradient: Array) -> None:
        norm = math.sqrt(sum(squares(gradient[block]) for block in pieces(gradient.size)))
        # NaN is not below anything.
        if not norm <= self.limit:
            share = self.limit / norm if math.isfinite(norm) else math.nan
            np.multiply(gradient, np.float32(share), out=gradient)
