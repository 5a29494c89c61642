"""The report: one file, nothing to be fetched, everything in it that was promised."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from pslab.compare.curves import curve, spans
from pslab.compare.groups import grouped
from pslab.compare.html import page
from pslab.compare.measure import Goals, measured
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
