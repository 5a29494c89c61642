"""The benchmark of a table that fills the memory, with a small one."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tables import large
from benchmarks.tables.large import Waits, measure
from benchmarks.tables.large_worker import FILLED, LEFT_OUT, fill_steps, sizes


def test_vocabularies_keep_their_proportions() -> None:
    found = sizes(1_000_000)
    assert 999_900 < sum(found) <= 1_000_050
    assert found[2] / found[3] == pytest.approx(10131227 / 2202608, rel=1e-3)


def test_one_of_twenty_ids_has_no_row_before_training() -> None:
    at = np.arange(fill_steps(100_000) * FILLED)
    ids = at + at // (LEFT_OUT - 1)
    assert np.unique(ids).size == ids.size and not (ids % LEFT_OUT == LEFT_OUT - 1).any()
    assert np.count_nonzero(ids < 100_000) == 95_000


def test_waits_are_summarised_in_milliseconds() -> None:
    found = Waits.of([0.001] * 98 + [0.049, 0.06])
    assert (found.number, found.median, found.longest, found.over) == (100, 1.0, 60.0, 1)


def test_a_job_goes_on_from_its_checkpoint_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "BEFORE", 10)
    found = measure(100_000, 4, 1.0, tmp_path, 0, lambda text: None)
    assert found.equal and found.repeated > 0
    assert found.filled == 95_000 < found.rows <= 100_050
    # 4 numbers, a sum, an age of two; an index of 12 bytes a place, between 0.37 and 0.75 full.
    assert 28 + 12 / 0.75 <= found.ledger / found.rows <= 28 + 12 / 0.37
    assert found.checkpoint_bytes > 28 * 95_000
    assert found.training.number + found.beside.number > 10
    assert "all rows equal to the bit" in found.text()
