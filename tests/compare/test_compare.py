"""Runs in groups: what makes a group, its means and spreads."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from pslab.compare.group_table import compare_json, spread_text
from pslab.compare.groups import Goals, grouped, spread
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate


def three_seeds(folder: Path, policy: str, **knobs: Any) -> list[Run]:
    return [simulate(folder / f"{policy}-{seed}", policy, knobs, run={"seed": seed}) for seed in range(3)]


def test_runs_that_differ_by_seed_are_one_group(tmp_path: Path) -> None:
    runs = [*three_seeds(tmp_path, "async"), *three_seeds(tmp_path, "sync")]
    slow, fast = grouped(runs)
    assert (slow.label, fast.label) == ("async", "sync")
    assert [run.seed for run in slow.runs] == [0, 1, 2]
    accuracies = [run.summary.metrics["accuracy"] for run in runs[:3]]
    found = slow.spread("accuracy")
    assert found.mean == pytest.approx(statistics.fmean(a for a in accuracies if a is not None))
    assert found.deviation == pytest.approx(statistics.stdev(a for a in accuracies if a is not None))
    assert found.count == 3
    assert fast.spread("mean_staleness").mean == 0
    assert slow.spread("seconds").mean == pytest.approx(
        statistics.fmean(run.summary.wall_seconds for run in runs[:3])
    )


def test_a_label_names_what_differs_and_nothing_else(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / "a", "bounded", {"max_staleness": 1}),
        simulate(tmp_path / "b", "bounded", {"max_staleness": 2}),
        simulate(tmp_path / "c", "async", optimizer={"learning_rate": 0.1}),
    ]
    labels = [group.label for group in grouped(runs)]
    assert labels == [
        "bounded (max_staleness=1), learning_rate=0.05",
        "bounded (max_staleness=2), learning_rate=0.05",
        "async, learning_rate=0.1",
    ]


def test_a_log_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    log = simulate(tmp_path / "run", "async").log
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    said = ps_lab("compare", tmp_path / "run")
    assert said.code == ExitCode.USAGE
    assert "decisions.jsonl: expected an entry of the job's stop" in said.err


def test_a_run_that_has_not_ended_is_none_that_failed(tmp_path: Path) -> None:
    """It still runs, or was killed."""
    run = simulate(tmp_path / "run", "async")
    (run.path / "summary.json").unlink()
    [group] = grouped([Run(run.path)])
    [told] = compare_json([group])["groups"]
    assert (told["failed"], told["unfinished"]) == (0, 1)
    assert "1 (1 unfinished)" in " ".join(ps_lab("compare", run.path).out.split())


def test_time_to_a_loss_counts_from_the_first_grant(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    losses = [(m.t, m.loss) for m in run.metrics() if m.kind == "train"]
    reached = next(
        t
        for n, (t, _) in enumerate(losses)
        if n >= 9 and sum(loss for _, loss in losses[n - 9 : n + 1]) <= 20
    )
    (group,) = grouped([run], Goals(training_loss=2.0, accuracy=0.5))
    assert group.spread("seconds_to_training_loss").mean == reached - run.first_grant()
    assert group.spread("seconds_to_accuracy").mean > 0
    (never,) = grouped([run], Goals(training_loss=0.0))
    assert (
        math.isnan(never.spread("seconds_to_training_loss").mean)
        and never.spread("seconds_to_training_loss").count == 0
    )


def test_spreads_in_words() -> None:
    assert spread_text(spread([1.0, 2.0, 3.0]), 2) == "2.00 ±1.00"
    assert spread_text(spread([1.0, math.nan]), 1, 100.0) == "100.0"
    assert spread_text(spread([math.nan]), 1) == "-"


def test_json_has_no_nan(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation={"problem": "none", "batches": 5})
    said = ps_lab("compare", run.path, "--json")
    assert "NaN" not in said.out
    assert said.lines[0]["groups"][0]["measures"]["accuracy"] == {"mean": None, "deviation": None, "count": 0}
    # The table leaves out what nobody has measured.
    table = ps_lab("compare", run.path).out
    assert "versions" in table and "loss" not in table and "accuracy" not in table


def test_the_command(tmp_path: Path) -> None:
    runs = three_seeds(tmp_path, "async")
    said = ps_lab("compare", *(run.path for run in runs), "--training-loss", 2)
    assert said.code == 0 and "s to training loss 2" in said.out and "±" in said.out
    (line,) = ps_lab("compare", *(run.path for run in runs), "--json").lines
    (group,) = line["groups"]
    assert group["seeds"] == [0, 1, 2] and group["measures"]["versions"]["mean"] == runs[0].summary.versions
    (runs[0].path / "summary.json").unlink()
    cut_off = ps_lab("compare", *(run.path for run in runs))
    assert cut_off.code == 0 and "has no summary.json" in cut_off.err


def test_each_loss_has_its_own_name(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async")
    (group,) = grouped([run])
    assert group.spread("held_out_loss").mean == run.summary.metrics["loss"]
    assert group.spread("training_loss").count == 0
    path = run.path / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(summary | {"metrics": {"training_loss": 0.5}}), encoding="utf-8")
    (group,) = grouped([Run(run.path)])
    assert group.spread("training_loss").mean == 0.5 and group.spread("held_out_loss").count == 0
