"""The benchmark of rows: it measures what it says, of a table that has these rows."""

from benchmarks.tables.rows import measure


def test_figures_are_of_a_table_of_that_size() -> None:
    found = measure("rowwise-adagrad", 3000, 8, repeats=2, batch=100)
    assert (found.rows, found.batch, found.dim) == (3000, 100, 8)
    # 8 numbers, a sum, an age of two; an index of 12 bytes a place, between 0.37 and 0.75 full.
    assert 44 + 12 / 0.75 <= found.bytes_per_row <= 44 + 12 / 0.37
    assert min(found.one_line, found.probe, found.read, found.update) > 0
