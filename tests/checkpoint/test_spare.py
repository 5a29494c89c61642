"""Memory that is got before it is needed: nobody writes to it once it is in use, and the account knows of it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psserver.service.guard.ledger import MemoryLedger
from psserver.service.store import shard_part
from psserver.service.store.shard_part import SPARE_KIND, SpareArrays
from tests.patience import PATIENCE

SIZES = (3 * 2048, 2048)
NBYTES = 4 * sum(SIZES)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def memory() -> MemoryLedger:
    return MemoryLedger(2 * NBYTES)


def held(memory: MemoryLedger) -> int:
    return memory.use().parts.get(SPARE_KIND, 0)


def test_it_is_ready_and_in_the_account(memory: MemoryLedger, threads: ThreadPoolExecutor) -> None:
    arrays = SpareArrays(memory, threads)
    work = arrays.prepare(SIZES)
    assert work is not None and held(memory) == NBYTES
    assert arrays.prepare(SIZES) is None, "there are some"
    work.result(PATIENCE)
    taken = arrays.take()
    assert taken is not None and [values.size for values in taken.wait()] == list(SIZES)
    assert held(memory) == 0 and arrays.take() is None


def test_what_is_taken_too_early_is_written_to_by_nobody_else(
    memory: MemoryLedger, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread stands still before its second piece; what took the arrays waits for it, and finds them its own."""
    monkeypatch.setattr(shard_part, "PIECE", 2048)
    second, go = threading.Event(), threading.Event()
    pieces = shard_part.PrefaultedArrays.pieces

    def slowly(touched: shard_part.PrefaultedArrays) -> Iterator[np.ndarray]:
        for k, piece in enumerate(pieces(touched)):
            if k == 1:
                second.set()
                assert go.wait(PATIENCE)
            yield piece

    monkeypatch.setattr(shard_part.PrefaultedArrays, "pieces", slowly)
    arrays = SpareArrays(memory, threads)
    work = arrays.prepare(SIZES)
    assert work is not None and second.wait(PATIENCE)
    taken = arrays.take()
    assert taken is not None and held(memory) == 0
    with ThreadPoolExecutor(1) as other:
        waited = other.submit(taken.wait)
        assert not waited.done()
        go.set()
        for values in waited.result(PATIENCE):
            values[...] = 7
    work.result(PATIENCE)
    assert all((values == 7).all() for values in taken.arrays)


def test_without_room_there_is_none(threads: ThreadPoolExecutor) -> None:
    memory = MemoryLedger(NBYTES - 1)
    arrays = SpareArrays(memory, threads)
    assert arrays.prepare(SIZES) is None
    arrays.keep([np.empty(size, np.float32) for size in SIZES])
    assert arrays.take() is None and memory.total == 0


def test_no_memory_is_no_fault(
    memory: MemoryLedger, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(shard_part.np, "empty", none)
    arrays = SpareArrays(memory, threads)
    assert arrays.prepare(SIZES) is None
    assert memory.total == 0 and arrays.take() is None


def test_what_was_used_is_kept_once(memory: MemoryLedger, threads: ThreadPoolExecutor) -> None:
    first, second = ([np.ones(size, np.float32) for size in SIZES] for _ in range(2))
    arrays = SpareArrays(memory, threads)
    arrays.keep(first)
    arrays.keep(second)
    assert held(memory) == NBYTES
    taken = arrays.take()
    assert taken is not None and taken.wait() is not second and taken.wait()[0] is first[0]
