"""What charts are made of: curves and maps; and sentences below the table."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pandas", reason="no pandas here (scripts/install examples)")

import pandas as pd

from pslab.compare.charts import write_picture
from pslab.compare.charts.plotter import NAMED
from pslab.compare.charts.runs import curve, histograms, loss_chart, share_chart, smoothed, staleness_chart
from pslab.compare.groups import grouped
from tests.replay.simulated import simulate


def test_a_curve_has_one_point_per_version(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    found = curve(run)
    assert list(found.versions) == list(range(1, run.summary.versions + 1))
    assert found.samples.iloc[-1] == run.summary.samples
    assert found.seconds.iloc[-1] == pytest.approx(run.summary.wall_seconds, abs=1e-6)


@pytest.mark.parametrize("workers", [1, NAMED, 4 * NAMED])
def test_every_worker_has_a_row_and_a_bar_and_few_are_named(tmp_path: Path, workers: int) -> None:
    run = simulate(
        tmp_path / "run",
        "ssp",
        {"slack": 3},
        run={"versions": 5 * workers},
        cluster={"workers": workers},
        simulation={"problem": "none"},
    )
    groups = grouped([run])
    (axes,) = share_chart(groups).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert len(heights) == workers and sum(heights) == pytest.approx(100)
    assert len(axes.get_xticks()) == min(workers, NAMED)
    panel, *bars = staleness_chart(groups).axes
    if workers > 1:
        assert panel.images[0].get_array().shape[0] == workers and bars[0].get_ylabel() == "share %"
        assert len(panel.get_yticks()) == min(workers, NAMED)


def test_where_all_staleness_is_the_same_it_is_said_and_so_is_why_something_was_dropped(
    tmp_path: Path,
) -> None:
    run = simulate(
        tmp_path / "run",
        "bounded",
        {"aggregate": 1, "max_staleness": 0, "on_stale": "drop"},
        run={"versions": 40},
        cluster={"workers": 2 * NAMED},
        simulation={"problem": "none"},
    )
    groups = grouped([run])
    (panel,) = staleness_chart(groups).axes
    assert [text.get_text() for text in panel.texts] == ["all had staleness 0"] and not panel.images


def test_a_map_has_few_rows_and_columns_and_loses_nothing() -> None:
    workers = {f"w{n}": {0: 1, 599: 3} if n < 500 else {0: 2} for n in range(1000)}
    parts = histograms(workers)
    assert parts.shape == (200, 60) and list(parts.columns) == list(range(0, 600, 10))
    assert list(parts.index) == [f"w{n}" for n in range(0, 1000, 5)]
    assert parts.loc["w0", 0] == 0.25 and parts.loc["w0", 590] == 0.75 and parts.loc["w995", 0] == 1.0
    assert list(parts.sum(axis=1)) == pytest.approx([1.0] * 200)
    nobody = histograms({"w0": {}, "w1": {}})
    assert nobody.shape == (2, 1) and not nobody.any(axis=None)


def test_several_seeds_are_a_band_as_far_as_all_go(tmp_path: Path) -> None:
    runs = [simulate(tmp_path / str(seed), "async", run={"seed": seed, "versions": 40}) for seed in range(2)]
    # The second one was cut off.
    metrics = runs[1].path / "metrics.jsonl"
    metrics.write_text(
        "".join(metrics.read_text(encoding="utf-8").splitlines(keepends=True)[:30]), encoding="utf-8"
    )
    (group,) = grouped(runs)
    seconds, versions, _ = loss_chart([group]).axes
    (line,) = versions.lines
    assert (line.get_xdata()[0], line.get_xdata()[-1]) == (1, 30) and len(versions.collections) == 1
    first, second = (curve(run).set_index("versions").loss for run in runs)
    assert line.get_ydata()[-1] == pytest.approx((first[30] + second[30]) / 2)
    assert len(seconds.lines) == 1


def test_a_run_without_losses_says_so_in_its_chart(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", run={"versions": 20}, simulation={"problem": "none"})
    write_picture(grouped([run]), "training_loss", tmp_path / "loss.svg")
    assert "async (no loss recorded)" in (tmp_path / "loss.svg").read_text()


def test_smoothing_keeps_a_constant_and_has_no_bias_at_the_start() -> None:
    assert np.allclose(smoothed(pd.Series(np.full(100, 3.0))), 3.0)
    found = smoothed(pd.Series([5.0, 1.0, *[0.0] * 58]))
    # About a thirtieth of 60: each number counts half as much as the next one.
    assert list(found[:3]) == pytest.approx([5.0, (0.5 * 5 + 1) / 1.5, (0.25 * 5 + 0.5) / 1.75])
