"""Tables and pictures of runs."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pslab.runs.folder import Run, RunError
from pslab.runs.report import TAIL, binned, draw, labels, policy_label, rich_table, rows, smoothed
from tests.lab.logs import async_log, bounded_log, sync_log, write_run
from tests.sentences import Recorder


def three_runs(folder: Path) -> list[Run]:
    logs = {"sync": sync_log(), "async": async_log(40), "bounded": bounded_log()}
    return [Run(write_run(folder / name, records)) for name, records in logs.items()]


def test_the_table_tells_what_the_summaries_say(tmp_path: Path) -> None:
    first, second, third = rows(three_runs(tmp_path))
    assert (first.policy, second.policy, third.policy) == ("sync", "async", "bounded (K=2, s<=1, drop)")
    assert (first.versions, first.mean_staleness, first.max_staleness) == (3, 0.0, 0)
    assert second.mean_staleness > 1
    assert third.dropped == 1
    assert first.accuracy == 0.97


def test_the_table_is_readable(tmp_path: Path) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    runs = [*three_runs(tmp_path), Run(write_run(tmp_path / "again", async_log(40)))]
    console.print(rich_table(rows(runs)))
    text = console.export_text()
    for words in ("policy", "accuracy", "versions", "dropped", "mean, max", "0.970", "async, again"):
        assert words in text
    assert "…" not in text


def test_a_failed_run_is_marked(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "a", async_log(), success=False))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_table(rows([run])))
    assert "async (failed)" in console.export_text()


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "report.png"
    draw(three_runs(tmp_path), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000


def test_a_run_without_a_finite_loss_is_drawn_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", sync_log())
    (folder / "metrics.jsonl").write_text('{"t": 1.0, "version": 1, "loss": null, "kind": "train"}\n')
    draw([Run(folder)], tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


def test_no_run_is_no_picture(tmp_path: Path, sentences: Recorder) -> None:
    with pytest.raises(RunError) as refused:
        draw([], tmp_path / "a.png")
    sentences.check(refused)


def test_runs_of_the_same_policy_are_told_apart(tmp_path: Path) -> None:
    runs = [Run(write_run(tmp_path / name, async_log())) for name in ("one", "two")]
    assert labels(runs) == ["async, one", "async, two"]


def test_labels_show_the_knobs_that_matter() -> None:
    assert policy_label({"name": "ssp", "slack": 2}) == "ssp (slack 2)"
    assert policy_label({"name": "sync", "backup": 1}) == "sync (backup 1)"
    assert policy_label({"name": "sync", "backup": 0}) == "sync"


def test_smoothing_keeps_a_constant_and_has_no_bias_at_the_start() -> None:
    assert np.allclose(smoothed(np.full(100, 3.0)), 3.0)
    assert smoothed(np.array([5.0, 1.0, 1.0]))[0] == 5.0


def test_the_tail_shares_a_bin() -> None:
    assert binned(Counter({0: 3, TAIL: 1, TAIL + 30: 2})) == Counter({0: 3, TAIL: 3})
