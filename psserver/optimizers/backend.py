"""Who carries out the passes over arrays: numpy blocks here, compiled loops and threads elsewhere.

A pass is elementwise: element i of what is written depends on element i of
what is read. It exists twice, as a `Loop` to be compiled and as a numpy fallback
with the same arguments, and both give the same bits; so a backend may cut a
pass into ranges, give these to threads, and change from one form to the other
at any time.
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


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A pass as a plain Python loop over elements, written so that it can be compiled. Made once, and compared by
    identity.

    `function(*arrays, *scalars)`; `letters` says what each argument is:
    r, w: float32 array that is read, or written (and perhaps read); u: read
    and perhaps unaligned; W, b: uint32 array that is written, or read; H: uint16
    array that is written; h: one that is read and perhaps unaligned; f: float32 scalar.
    Arrays come first. None may stand for an argument that a variant lacks.
    """

    function: Callable[..., bool | None]
    letters: str

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


def loop(letters: str) -> Callable[[Callable[..., bool | None]], Loop]:
    """Decorator that makes a function a `Loop`."""
    return lambda function: Loop(function, letters)


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


NUMPY = NumpyBackend()
"""The backend that needs no compiler."""
