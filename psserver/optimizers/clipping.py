"""Clipping of the mean gradient before the rule sees it, as in Keras: by value, by variable norm, or by global norm.

Clipping runs in numpy even where the rule is compiled, so that the bits are the same. Norms are summed in float64,
block by block in order. A gradient within the limit keeps its bits; any other is multiplied by ``limit / norm``,
rounded once. A norm that is not finite makes the gradient NaN, as in Keras, so that the variable, or with a global norm
everything, is kept back. Clipping never increases a magnitude.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psserver.optimizers.blocks import Array, pieces, squares
from psserver.optimizers.rule import VariablePart
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
"""An optimizer takes at most one of them."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One kind of clipping. `knob`: a name from `KNOBS`; `limit`: its value, above 0."""

    knob: str
    limit: float

    def run(self, gradient: Array, parts: Sequence[VariablePart], factors: Sequence[np.float32]) -> None:
        """Multiply the gradient by all `factors`, then clip it, in place. `parts`: the variables of the gradient."""
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
        # "not <=" also catches NaN.
        if not norm <= self.limit:
            share = self.limit / norm if math.isfinite(norm) else math.nan
            np.multiply(gradient, np.float32(share), out=gradient)
