"""Payloads as they come in: copied, decoded and checked in one pass; a bad number is named as its variable has it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import Backend
from psserver.shard import arithmetic
from psserver.shard.payloads.staging import Slot
from pswire.model.plan import Plan

Floats = NDArray[np.float32]


class PayloadChecks:
    """Of one shard. `ordinary`: the largest magnitude in an ordinary payload (`psserver.shard.payloads.ordinary`)."""

    def __init__(self, plan: Plan, server: int, ordinary: float, backend: Backend) -> None:
        self._plan = plan
        self._layout = plan.shards[server]
        self._ordinary = np.float32(ordinary)
        self._backend = backend

    def nonfinite(self, values: Floats, start: int = 0, slot: Slot | None = None) -> str | None:
        """Names the first NaN or Inf in `values`, which begins at element `start`; None if all are finite.

        `slot`: of which it is a piece: that is no ordinary payload any more if one of these numbers is not ordinary.
        """
        if arithmetic.within(values, self._ordinary, self._backend):
            return None
        return self._unusual(values, start, slot)

    def copy_in(self, slot: Slot, source: NDArray[Any], start: int) -> str | None:
        """`nonfinite`, in one pass with the copy of a piece of a payload from `source` into `slot`, from `start` on.

        `source` holds float32, or the bits of bfloat16 as uint16.
        """
        target = slot.values[start : start + source.size]
        if arithmetic.copy_within(target, source, self._ordinary, self._backend):
            return None
        return self._unusual(target, start, slot)

    def _unusual(self, values: Floats, start: int, slot: Slot | None) -> str | None:
        found = arithmetic.first_nonfinite(values, self._backend)
        if found is not None:
            return self._bad(values, found, start)
        if slot is not None:
            slot.ordinary = False
        return None

    def _bad(self, values: Floats, found: int, start: int) -> str:
        return f"{values[found]} at {self._where(start + found)}"

    def _where(self, element: int) -> str:
        piece = next(s for s in self._layout.slices if s.offset <= element < s.offset + s.size)
        variable = self._plan.variables[piece.variable]
        inside = element - piece.offset
        if not variable.shape:
            return variable.name
        row = variable.size // variable.shape[0]
        index = np.unravel_index(piece.start * row + inside, variable.shape)
        return f"{variable.name}[{', '.join(str(int(i)) for i in index)}]"
