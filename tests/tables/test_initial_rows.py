"""Rows that do not exist yet cost no more memory than the rows themselves, and are finite."""

import tracemalloc

import numpy as np
import pytest

from psserver.service.net.rows import reading_bytes
from pswire.model.initial_rows import initial_rows
from pswire.model.tables import INITIALIZERS, NORMAL_REACH, TableSpec, mix
from pswire.model.variables import PlanError
from pswire.transport.codecs import FLOAT32
from pswire.transport.rows import RowFormat
from tests.tables.twin import gradient, table, update

KEYS = np.unique(mix(np.arange(40_000)))
LARGEST = float(np.finfo(np.float32).max)


def peak_of(call: object) -> int:
    """Return the most bytes that numpy held at once meanwhile."""
    tracemalloc.start()
    try:
        assert callable(call)
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("dim", [1, 64])
def test_draws_are_made_in_blocks(name: str, dim: int) -> None:
    spec = TableSpec("t", dim, name, tuple(INITIALIZERS[name].values()))
    assert peak_of(lambda: initial_rows(spec, KEYS)) < 4 * dim * KEYS.size + 4 * 2**20


@pytest.mark.parametrize("dim", [8, 64])
def test_a_read_takes_no_more_than_is_reserved(dim: int) -> None:
    spec = TableSpec("t", dim, "normal", (0.0, 0.05))
    ours = table(spec=spec)
    reserved = reading_bytes(RowFormat((spec,), FLOAT32, (KEYS.size,)))
    assert peak_of(lambda: ours.read(KEYS)) < reserved + 8 * 2**20


@pytest.mark.parametrize("dim", [8, 64])
def test_an_update_takes_no_more_than_it_demands(dim: int) -> None:
    spec = TableSpec("t", dim, "normal", (0.0, 0.05))
    ours = table({"name": "adam"}, spec)
    given = [gradient(list(range(start, start + 40_000)), 1, dim=dim) for start in (0, 20_000)]
    demand = sum(keys.size * (ours.row_bytes + ours.update_bytes) for keys, _, _ in given)
    # Rows lie in chunks, whose rest nothing is written to.
    assert peak_of(lambda: update(ours, *given, keep=True)) < demand + 64 * 2**20


def test_rows_of_the_largest_deviation_are_finite() -> None:
    most = LARGEST / NORMAL_REACH * (1 - 1e-6)
    for numbers in ((0.0, most), (-LARGEST / 2, most / 2)):
        assert np.isfinite(initial_rows(TableSpec("t", 64, "normal", numbers), KEYS[:5_000])).all()
    for numbers in ((0.0, 3e38), (0.0, LARGEST / 5), (LARGEST, LARGEST / 100)):
        with pytest.raises(PlanError, match="finite"):
            TableSpec("t", 64, "normal", numbers)
