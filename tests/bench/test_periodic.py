"""The table of periodic checkpoints: rounds are held against each other, whatever the machine did meanwhile."""

from benchmarks.periodic import Row, title


def test_a_row_is_the_median_of_ratios_within_rounds():
    row = Row(4.2, [100.0, 50.0, 200.0], [90.0, 50.0, 198.0], 12)
    assert row.ratio == 0.99
    assert row.text().split() == ["4.20", "100.0", "90.0", "0.990", "12"]
    assert len(title("10s", 30.0, 2).splitlines()[-1]) == len(row.text())
