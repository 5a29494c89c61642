"""The report: one file, nothing to be fetched, everything in it that was promised."""

import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from pslab.compare.charts.figures import MANY, histograms, shares, staleness
from pslab.compare.group_table import NAMED, drops, starving
from pslab.compare.groups import Goals, grouped, measured
from pslab.compare.html import page
from pslab.compare.timeline import spans
from pslab.runs.report import curve
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate


def test_a_report_is_one_file_with_every_chart(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / "a<b", "bounded", {"aggregate": 2, "max_staleness": 1}),
        simulate(tmp_path / "sync", "sync", {"backup": 1}),
    ]
    text = page(grouped([measured(run, Goals(loss=2.0)) for run in runs]), Goals(loss=2.0))
    assert not re.findall(r"<script|<link|<img|url\((?!#)|@import", text)
    # Names in namespaces are addresses that nobody fetches.
    fetched = [link for link in re.findall(r'(?:href|src)="([^"]*)"', text) if not link.startswith("#")]
    assert not fetched
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    # Loss, shares, and a timeline and staleness for each of two groups.
    assert len(charts) == 6
    for chart in charts:
        ET.fromstring(chart)
    assert "a&lt;b" in text and "a<b" not in text
    for words in (
        "seconds since the first grant",
        "samples of applied",
        "staleness of w3",
        "s to loss 2",
        "equal part",
    ):
        assert words in text
    again = page(grouped([measured(run, Goals(loss=2.0)) for run in runs]), Goals(loss=2.0))
    assert again == text


def test_spans_cover_what_each_worker_did(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "k-sync", {"aggregate": 2})
    found = spans(run)
    counts = run.summary.contributions
    for worker, count in counts.items():
        mine = [span for span in found if span.worker == worker]
        assert sum(span.fate == "applied" for span in mine) == count.applied
        assert all(a.end <= b.begin for a, b in zip(mine, mine[1:], strict=False))
        assert all(0 <= span.begin <= span.end for span in mine)
    assert any(span.fate == "lost" for span in found)


def test_a_curve_has_one_point_per_version(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    found = curve(run)
    assert list(found.versions) == list(range(1, run.summary.versions + 1))
    assert found.samples[-1] == run.summary.samples
    assert found.seconds[-1] == pytest.approx(run.summary.wall_seconds, abs=1e-6)


def test_the_command_writes_it(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    said = ps_lab("compare", run.path, "--html", tmp_path / "new" / "report.html")
    assert said.code == 0 and "report: " in said.out
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_many_workers_are_one_map_and_one_curve(tmp_path: Path) -> None:
    workers = 4 * MANY
    run = simulate(
        tmp_path / "run",
        "async",
        run={"versions": 5 * workers},
        cluster={"workers": workers},
        simulation={"problem": "none"},
    )
    groups = grouped([measured(run, Goals())])
    (panel, bar) = staleness(groups).axes
    assert panel.images[0].get_array().shape[0] == workers and bar.get_ylabel() == "share %"
    (axes,) = shares(groups).axes
    heights = axes.lines[0].get_ydata()
    assert len(heights) == workers and sum(heights) == pytest.approx(100)
    assert list(heights) == sorted(heights, reverse=True)
    text = page(groups, Goals())
    # An image is part of the page, too.
    assert all(link.startswith(("#", "data:")) for link in re.findall(r'(?:href|src)="([^"]*)"', text))
    assert "staleness of w" not in text


def test_where_all_staleness_is_the_same_it_is_said_and_so_is_why_something_was_dropped(
    tmp_path: Path,
) -> None:
    run = simulate(
        tmp_path / "run",
        "bounded",
        {"aggregate": 1, "max_staleness": 0, "on_stale": "drop"},
        run={"versions": 40},
        cluster={"workers": 2 * MANY},
        simulation={"problem": "none"},
    )
    groups = grouped([measured(run, Goals())])
    text = page(groups, Goals())
    assert "Everything that was applied had staleness 0." in text and "<image" not in text
    counted = sum(1 for entry in run.decisions() if entry.kind == "drop")
    (line,) = drops(groups)
    assert counted and f"{counted} dropped in run: " in line and escape(line) in text


def test_a_map_has_few_rows_and_columns_and_loses_nothing() -> None:
    workers = [{0: 1, 599: 3}] * 500 + [{0: 2}] * 500
    parts, width = histograms(workers)
    assert parts.shape == (200, 60) and width == 10
    assert parts[0, 0] == 0.25 and parts[0, 59] == 0.75 and parts[199, 0] == 1.0
    assert parts.sum(axis=1) == pytest.approx(1)
    nobody, width = histograms([{}, {}])
    assert nobody.shape == (2, 1) and width == 1 and not nobody.any()


def test_a_run_without_losses_has_no_empty_chart_of_them(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", run={"versions": 20}, simulation={"problem": "none"})
    text = page(grouped([measured(run, Goals())]), Goals())
    assert "No run has one" in text and "samples of applied" not in text


def test_many_that_starve_are_counted(tmp_path: Path) -> None:
    slow = {str(number): 100.0 for number in range(8)}
    run = simulate(
        tmp_path / "run",
        "async",
        run={"versions": 400},
        cluster={"workers": 10},
        simulation={"problem": "none", "factors": slow},
    )
    lines = starving(grouped([measured(run, Goals())]))
    assert len(lines) == NAMED + 1 and lines[-1] == "async: 3 more of 10 workers starve"
