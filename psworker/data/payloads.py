"""Payloads of one server: what a session pushes, made in advance or when it is sent, and the version it receives."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pswire.model.rows import ReceivedRows

Floats = NDArray[np.float32]

# One server's flat payload: float32, or the session's wire dtype (numpy's float16, ml_dtypes' bfloat16). A callable is
# called in the thread that sends to that server, so that one shard's gradient travels while the next shard's is still
# on its way from the device.
Payload = NDArray[Any] | Callable[[], NDArray[Any]]


Copy = Callable[[NDArray[Any], NDArray[Any]], object]
# Bytes of a payload from which threads copy its parts, and how many threads then do, a quarter of the cores that this
# process may use: one thread does not fill the memory's bandwidth.
MANY = 2**25
COPIERS = min(4, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1) // 4)


@contextmanager
def copier(nbytes: int) -> Iterator[Copy]:
    """Give what copies the second array into the first, at the latest when the block is left; in threads where there
    are many bytes and cores."""
    if nbytes < MANY or COPIERS < 2:
        yield np.copyto
        return
    with ThreadPoolExecutor(COPIERS, "ps-copy") as pool:
        running: list[Future[None]] = []
        yield lambda into, array: running.append(pool.submit(np.copyto, into, array))
        for each in running:
            each.result()


class Pieces:
    """A payload of `elements` in several arrays, which are written one behind the other to their destination.

    That saves the pass that would join them first. A call joins them, as for any other callable payload. `parts` are
    called in the thread that sends, and all return `dtype`.
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
        """Write all parts into `target`. Raises ValueError when their sizes do not add up to its size."""
        found = 0
        with copier(self.nbytes) as copy:
            for part in self._parts:
                # The next parts may still be on their way from a device.
                array = part()
                if found + array.size <= target.size:
                    copy(target[found : found + array.size], array)
                found += array.size
        if found != target.size:
            raise ValueError(f"expected parts of {target.size} elements in all, got {found}")

    def __call__(self) -> NDArray[Any]:
        joined = np.empty(self.shape, self.dtype)
        self.write(joined)
        return joined


def array_of(payload: Payload) -> NDArray[Any]:
    """Return the payload's array, made now if it is a callable."""
    return payload() if callable(payload) else payload


class Flat(Protocol):
    """The result of a computation as one array per server."""

    @property
    def flats(self) -> Sequence[NDArray[Any]]: ...


@runtime_checkable
class Lazy(Protocol):
    """The result of a computation as payloads that are made when they are sent."""

    @property
    def payloads(self) -> Sequence[Payload]: ...


def payloads_of(result: Flat) -> Sequence[Payload]:
    return result.payloads if isinstance(result, Lazy) else result.flats


class Lender(Protocol):
    """The owner of memory that holds versions, such as `psworker.data.shared_memory.Attachment`."""

    def mark_read(self, ticket: int) -> None: ...


@dataclass(slots=True)
class Received:
    """One server's part of a version: an array of this process, or the server's memory, to be read in place.

    `values` is float32, or in the dtype in which it travelled.
    """

    values: NDArray[Any]
    ticket: int = 0
    # The owner of `values` while they lie in the server's memory.
    lender: Lender | None = None
    # Takes an array of this process back after the reading, for the next version.
    spare: list[NDArray[Any]] | None = None
    # The rows of tables that were asked for with it.
    rows: ReceivedRows | None = None

    def copied(self) -> Floats:
        """Return a float32 array that the caller may keep, and release the rest."""
        if self.lender is not None:
            self.values = self.values.copy()
        else:
            self.spare = None
        self.release()
        return self.values.astype(np.float32, copy=False)

    def release(self) -> None:
        """End the reading. The values may change from now on."""
        if self.lender is not None:
            self.lender.mark_read(self.ticket)
            self.lender = None
        if self.spare is not None:
            self.spare.append(self.values)
            self.spare = None
