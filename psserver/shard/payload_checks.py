"""Checks of incoming payloads: copy, decode and check in one pass, and name a bad number by its variable."""

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psserver.fast import Backend
from psserver.shard import arithmetic
from psserver.shard.staging import Slot
from psserver.shard.tables.group import squares_of
from pswire.model.plan import Plan
from pswire.model.rows import Rows

Floats = NDArray[np.float32]


class PayloadChecks:
    """The checks of one shard."""

    def __init__(self, plan: Plan, server: int, backend: Backend) -> None:
        self._plan = plan
        self._layout = plan.shards[server]
        self._backend = backend

    def nonfinite(self, values: Floats, start: int = 0) -> str | None:
        """Name the first NaN or Inf in `values`, which begin at element `start`; None if all are finite."""
        found = arithmetic.first_nonfinite(values, self._backend)
        return None if found is None else self._bad(values, found, start)

    def measure(self, slot: Slot, start: int, stop: int) -> str | None:
        """Check and measure a piece of a payload that already lies in `slot`, as `copy_in` does."""
        return self._measured(slot, start, stop, None)

    def measure_rows(self, rows: Rows) -> float | None:
        """Return the sum of squares of gradients of rows; None if one is not finite."""
        return squares_of(rows, self._backend)

    def copy_in(self, slot: Slot, source: NDArray[Any], start: int) -> str | None:
        """Copy a piece of a payload from `source` into `slot`, at element `start`, and add it to the payload's norm.

        `source` holds float32, or the bits of bfloat16 as uint16. Returns the name of the first NaN or Inf, or None.
        """
        return self._measured(slot, start, start + source.size, source)

    def _measured(self, slot: Slot, start: int, stop: int, source: NDArray[Any] | None) -> str | None:
        if stop <= self._layout.trainable:
            return self._piece(slot, start, stop, source)
        # The norm is the gradient's, so the state part, which follows, is measured apart.
        middle = min(max(self._layout.trainable, start), stop)
        for begin, end in ((start, middle), (middle, stop)):
            if begin < end:
                part = None if source is None else source[begin - start : end - start]
                bad = self._piece(slot, begin, end, part)
                if bad is not None:
                    return bad
        return None

    def _piece(self, slot: Slot, start: int, stop: int, source: NDArray[Any] | None) -> str | None:
        target, backend = slot.values[start:stop], self._backend
        if source is None:
            squares = arithmetic.squares(target, backend)
        else:
            squares = arithmetic.copy_squares(target, source, backend)
        if squares is None:
            return self.nonfinite(target, start)
        if start < self._layout.trainable:
            slot.squares += squares
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


# The last bits of a sum depend on the pieces in which a payload arrived; a log must not.
DIGITS: Final = 6


def norm_of(squares: Iterable[float]) -> float:
    """Return the L2 norm in six digits. `squares`: one sum per server, in the order of the servers."""
    return float(f"{math.sqrt(sum(squares)):.{DIGITS}g}")


def same_norm(one: float, other: float) -> bool:
    """Compare norms up to the last digit: sums in different orders may be rounded to either side."""
    return math.isclose(one, other, rel_tol=2 * 10.0 ** (1 - DIGITS))
