"""Who carries out the passes over arrays: numpy blocks here, compiled loops and threads elsewhere.

A pass is elementwise: element i of what is written depends on element i of
what is read. It exists twice, as a `Loop` to be compiled and as a numpy fallback
with the same arguments, and both give the same bits; so a backend may cut a
pass into ranges, give these to threads, and change from one form to the other
at any time.

A pass may also add up a number over the elements (`Backend.total`). Its order is nobody's contract: in which pieces the
array came, and who adds them up, shows in the last bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
"""An array of any dtype: a slot may hold integers."""

Fallback = Callable[..., bool | None]
"""The same pass in numpy, with the same bits."""

Summing = Callable[..., float]
"""A pass that returns a sum, of numbers of at least 0; negative where something is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A pass as a plain Python loop over elements, written so that it can be compiled. Made once, and compared by
    identity.

    `function(*arrays, *scalars)`; `letters` says what each argument is:
    r, w: float32 array that is read, or written (and perhaps read); u: read
    and perhaps unaligned; W, b: uint32 array that is written, or read; H: uint16
    array that is written; h: one that is read and perhaps unaligned; f: float32 scalar.
    Arrays come first. None may stand for an argument that a variant lacks. `sums`: it returns a sum over the elements,
    as `Summing`, in whatever order is fastest; what it writes is as exact as that of any other.
    """

    function: Callable[..., bool | None | float]
    letters: str
    sums: bool = False

    def variant(self, arguments: Sequence[object]) -> str:
        """`letters`, with a dash for each argument that is None."""
        if len(arguments) != len(self.letters):
            raise TypeError(
                f"loop {self.function.__name__} takes {len(self.letters)} arguments, got {len(arguments)}"
            )
        letters = self.letters
        # Mostly there is none.
        for place, argument in enumerate(arguments):
            if argument is None:
                letters = f"{letters[:place]}-{letters[place + 1 :]}"
        return letters


def loop(letters: str, *, sums: bool = False) -> Callable[[Callable[..., bool | None | float]], Loop]:
    """Decorator that makes a function a `Loop`."""
    return lambda function: Loop(function, letters, sums)


class Backend(Protocol):
    """Runs passes; the result does not depend on which backend it was, nor on its threads."""

    def run(
        self,
        loop: Loop,
        fallback: Fallback,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """Carry out one pass over flat arrays of equal length; False when the pass returned False anywhere."""

    def total(
        self,
        loop: Loop,
        fallback: Summing,
        arrays: Sequence[AnyArray],
        scalars: Sequence[np.float32] = (),
    ) -> float | None:
        """The sum that one pass returns; None when it was negative anywhere. Not of empty arrays."""


class NumpyBackend:
    """The fallback, in the calling thread. Needs nothing but numpy."""

    def run(
        self,
        loop: Loop,
        fallback: Fallback,
        arrays: Sequence[AnyArray | None],
        scalars: Sequence[np.float32 | None] = (),
    ) -> bool:
        """The fallback, on the whole arrays."""
        return fallback(*arrays, *scalars) is not False

    def total(
        self,
        loop: Loop,
        fallback: Summing,
        arrays: Sequence[AnyArray],
        scalars: Sequence[np.float32] = (),
    ) -> float | None:
        """The sum of the fallback over the whole arrays."""
        found = fallback(*arrays, *scalars)
        return None if found < 0 else found


NUMPY = NumpyBackend()
"""The backend that needs no compiler."""
