"""Passes over arrays as loops to compile.

A pass is elementwise: element i of each output depends on element i of the inputs alone. A `Backend` may therefore cut
a pass into ranges and spread these over threads.

A pass may also sum a number over the elements (`Backend.total`). The order of that sum is not part of the contract: its
last bits depend on how the array is divided.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
"""An array of any dtype."""

LARGEST: Final = np.float32(np.finfo(np.float32).max)
"""The largest float32. Comparing with <= also rejects infinity and NaN."""
SWEEP_EVERY: Final = 64
"""Slots are cleared of subnormals every so many versions: often enough that they never linger, seldom enough to cost
nothing. It depends on the version alone, so that replays and restored runs clear at the same updates."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A pass as a plain Python loop over elements, in the subset of Python that numba compiles.

    `function(*arrays, *scalars)` takes arrays first. `letters` has one letter for each argument:

    r       float32 array, read
    w       float32 array, written and possibly read
    u       float32 array, read, possibly unaligned
    W, b    uint32 array, written; read
    H       uint16 array, written
    h       uint16 array, read, possibly unaligned
    f       float32 scalar

    None may stand for an argument that a variant lacks. `sums`: the function returns a sum of non-negative numbers over
    the elements, added in the fastest order, or a negative number on failure; what it writes is exact all the same.
    Loops are compared by identity.
    """

    function: Callable[..., bool | None | float]
    letters: str
    sums: bool = False

    def variant(self, arguments: Sequence[object]) -> str:
        """Return `letters` with a dash for each argument that is None."""
        if len(arguments) != len(self.letters):
            raise TypeError(
                f"loop {self.function.__name__} takes {len(self.letters)} arguments, got {len(arguments)}"
            )
        letters = self.letters
        # Most calls have none, and leave the string as it is.
        for place, argument in enumerate(arguments):
            if argument is None:
                letters = f"{letters[:place]}-{letters[place + 1 :]}"
        return letters


Variant = tuple[Loop, str]
"""A loop, and for which of its arguments it has None: `Loop.variant`."""


def loop(letters: str, *, sums: bool = False) -> Callable[[Callable[..., bool | None | float]], Loop]:
    """Decorate a function as a `Loop`."""
    return lambda function: Loop(function, letters, sums)


@dataclass(frozen=True, slots=True)
class RowPass:
    """An update of rows where they lie, in one pass, to compile (`psserver.fast.rows.RowUpdate`).

    `loop` advances the numbers of several rows, and takes `scalars` numbers of the rule; None is row-wise Adagrad.
    `widths`: the numbers per row of each slot, 0 for as many as the row has. `own`: the place among the scalars of the
    one that each row has by its own number of updates; the loop then takes it, and "tiny", as arrays. -1: none.
    """

    loop: Loop | None
    scalars: int
    widths: tuple[int, ...]
    own: int = -1
