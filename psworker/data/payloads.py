"""What a session pushes: flat arrays, or what gives them when their servers are ready to take them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

# One server's flat payload: float32, or the session's wire dtype (numpy's float16, ml_dtypes' bfloat16). What is
# called instead is called in the thread that sends to that server: so one shard's gradient travels while the
# next one's is still on its way from the device.
Payload = NDArray[Any] | Callable[[], NDArray[Any]]


class Pieces:
    """A payload of `elements`, whose parts lie apart: written one behind the other to where it goes, which saves the
    pass that would join them first. Called as any other payload that is, it joins them.

    `parts` are called in the thread that sends, and all have `dtype`.
    """

    def __init__(
        self, parts: Sequence[Callable[[], NDArray[Any]]], elements: int, dtype: DTypeLike = np.float32
    ) -> None:
        self._parts = parts
        self.shape = (elements,)
        self.dtype = np.dtype(dtype)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.dtype.itemsize

    def write(self, target: NDArray[Any]) -> None:
        """Into `target`, of as many elements. Raises ValueError when the parts are not so many."""
        arrays = [part() for part in self._parts]
        found = sum(array.size for array in arrays)
        if found != target.size:
            raise ValueError(f"expected parts of {target.size} elements in all, got {found}")
        start = 0
        for array in arrays:
            target[start : start + array.size] = array
            start += array.size

    def __call__(self) -> NDArray[Any]:
        joined = np.empty(self.shape, self.dtype)
        self.write(joined)
        return joined


def array_of(payload: Payload) -> NDArray[Any]:
    return payload() if callable(payload) else payload


class Flat(Protocol):
    """What came of a computation: one array per server."""

    @property
    def flats(self) -> Sequence[NDArray[Any]]: ...


@runtime_checkable
class Lazy(Protocol):
    """The same, made no sooner than they are sent."""

    @property
    def payloads(self) -> Sequence[Payload]: ...


def payloads_of(result: Flat) -> Sequence[Payload]:
    return result.payloads if isinstance(result, Lazy) else result.flats
