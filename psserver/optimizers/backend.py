"""Passes over arrays, and the backends that run them.

A pass is elementwise: element i of each output depends on element i of the inputs alone. Each pass exists twice, as a
`Loop` to compile and as a numpy fallback with the same arguments, and both give the same bits. A backend may therefore
cut a pass into ranges, spread these over threads, and switch between the two forms at any time.

A pass may also sum a number over the elements (`Backend.total`). The order of that sum is not part of the contract: the
last bits depend on how the array is divided and on which form runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from psserver.optimizers.row_kernels import NUMPY_ROWS, RowKernels, RowUpdate

AnyArray = npt.NDArray[Any]
"""An array of any dtype."""

Fallback = Callable[..., bool | None]
"""The numpy form of a pass."""

Summing = Callable[..., float]
"""A pass that returns a sum of non-negative numbers, or a negative number on failure."""


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

    None may stand for an argument that a variant lacks. `sums`: the function returns a sum over the elements, as
    `Summing` does, added in the fastest order; what it writes is exact all the same. Loops are compared by identity.
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


def loop(letters: str, *, sums: bool = False) -> Callable[[Callable[..., bool | None | float]], Loop]:
    """Decorate a function as a `Loop`."""
    return lambda function: Loop(function, letters, sums)


@dataclass(frozen=True, slots=True)
class RowPass:
    """An update of rows where they lie, in one pass, for a backend to compile (`RowUpdate`).

    `loop` advances the numbers of several rows, and takes `scalars` numbers of the rule; None is row-wise Adagrad.
    `widths`: the numbers per row of each slot, 0 for as many as the row has. `own`: the place among the scalars of the
    one that each row has by its own number of updates; the loop then takes it, and "tiny", as arrays. -1: none.
    """

    loop: Loop | None
    scalars: int
    widths: tuple[int, ...]
    own: int = -1


class Backend(Protocol):
    """An executor of passes. Results depend neither on the backend nor on its threads."""

    @property
    def rows(self) -> RowKernels:
        """The kernels of sparse tables to use now."""

    def row_update(self, wanted: RowPass) -> RowUpdate | None:
        """Return the compiled pass to use now; None if there is none."""

    def run(
        self,
        loop: Loop,
        fallback: Fallback,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """Run one pass over flat arrays of equal length. Return False if the pass returned False for any range."""

    def total(
        self,
        loop: Loop,
        fallback: Summing,
        arrays: Sequence[AnyArray],
        scalars: Sequence[np.float32] = (),
    ) -> float | None:
        """Return the sum that one pass computes, or None if it was negative for any range. Arrays are not empty."""


class NumpyBackend:
    """The fallback, in the calling thread. Needs numpy only."""

    rows = NUMPY_ROWS

    def row_update(self, wanted: RowPass) -> RowUpdate | None:
        """Return None: there is no compiler."""
        return None

    def run(
        self,
        loop: Loop,
        fallback: Fallback,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """Run the fallback on the whole arrays."""
        return fallback(*arrays, *scalars) is not False

    def total(
        self,
        loop: Loop,
        fallback: Summing,
        arrays: Sequence[AnyArray],
        scalars: Sequence[np.float32] = (),
    ) -> float | None:
        """Return the sum of the fallback over the whole arrays."""
        found = fallback(*arrays, *scalars)
        return None if found < 0 else found


NUMPY = NumpyBackend()
"""The backend that needs no compiler."""
