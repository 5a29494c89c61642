"""What a comparison can show besides its table: single charts, the best of each policy."""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

pytest.importorskip("matplotlib")
pytest.importorskip("pandas", reason="no pandas here (scripts/install examples)")

from pslab.compare.charts import PLOTS, write_picture
from pslab.compare.charts.measures import bounded, measure_chart
from pslab.compare.group_table import columns_for, compare_table
from pslab.compare.groups import MEASURES, Goals, RunGroup, best_of_each, grouped, measured
from pslab.runs.folder import Run, RunError
from pswire.exits import ExitCode
from tests.replay.command import ps_lab
from tests.replay.simulated import simulate

TIMING = {"problem": "none", "batches": 40}
LEARNING = {
    "problem": "quadratic",
    "options": {"dimensions": 4, "condition": 1.0, "noise": 0.1, "batches_per_epoch": 60},
    "evaluate": 1,
}
SGD = {"name": "sgd", "learning_rate": 0.1}


def test_every_measure_has_a_name(timed: Run) -> None:
    assert tuple(measured(timed, Goals(training_loss=1.0)).values) == MEASURES


@pytest.fixture(scope="module")
def k_sync_groups(tmp_path_factory: pytest.TempPathFactory) -> list[RunGroup]:
    """Three settings that learn, simulated once for all plots."""
    folder = tmp_path_factory.mktemp("k-sync")
    runs = [
        simulate(folder / f"{n}", "k-sync", {"aggregate": n}, simulation=LEARNING, optimizer=SGD)
        for n in (1, 2, 3)
    ]
    return grouped(runs)


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_is_drawn(k_sync_groups: list[RunGroup], plot: str, tmp_path: Path) -> None:
    write_picture(k_sync_groups, plot, tmp_path / "a.svg")
    ET.fromstring((tmp_path / "a.svg").read_text(encoding="utf-8"))


def test_a_plot_may_be_a_picture_in_a_new_folder(k_sync_groups: list[RunGroup], tmp_path: Path) -> None:
    write_picture(k_sync_groups, "training_loss", tmp_path / "new" / "b.png")
    assert (tmp_path / "new" / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_measure_with_a_law_has_it_as_a_dashed_line(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / f"{n}", "k-batch-async", {"aggregate": n}, simulation=TIMING) for n in (1, 2, 4)
    ]
    groups = grouped(runs)
    write_picture(groups, "mean_staleness", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "stroke-dasharray" in text and "(n - 1)" in text and "policy.aggregate" in text


def test_a_policy_without_the_varied_knob_is_a_line_across(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / f"{n}", "k-sync", {"aggregate": n}, simulation=TIMING | {"batches": 5})
        for n in (1, 2)
    ]
    runs.append(simulate(tmp_path / "async", "async", simulation=TIMING | {"batches": 5}))
    groups = grouped(runs)
    (axes,) = measure_chart(groups, "samples_per_second").axes
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["async"] == 2 * [groups[2].spread("samples_per_second").mean]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["async", "k-sync"]


def test_why_a_group_has_no_bound(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / "sync", "sync", simulation=LEARNING, optimizer=SGD),
        simulate(
            tmp_path / "async", "async", simulation=LEARNING, optimizer={"name": "sgd", "learning_rate": 0.02}
        ),
        simulate(tmp_path / "adam", "async", simulation=LEARNING, optimizer={"name": "adam"}),
    ]
    groups = grouped(runs)
    curves, (missing,) = bounded(groups)
    assert len(curves) == 2 and "of sgd with a constant learning rate" in missing


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of `async` that learns nothing."""
    return simulate(tmp_path_factory.mktemp("timed") / "run", "async", simulation=TIMING)


def test_a_chart_is_written(timed: Run, tmp_path: Path) -> None:
    said = ps_lab("compare", timed.path, "--chart", f"timeline={tmp_path / 'a.png'}")
    assert said.code == 0 and "chart: " in said.out and (tmp_path / "a.png").is_file()


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of two settings whose names are long."""
    folder = tmp_path_factory.mktemp("long-names")
    return [
        simulate(
            folder / f"{late}-{seed}",
            "bounded",
            {"max_staleness": 12, "on_stale": late},
            run={"seed": seed},
            simulation=LEARNING,
            optimizer=SGD,
        ).path
        for late in ("downweight", "compensate")
        for seed in (0, 1)
    ]


def printed(table: Table, width: int) -> str:
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(table)
    return screen.export_text()


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_tables_keep_what_identifies_a_row_and_name_what_they_leave_out(
    long_names: list[Path], width: int
) -> None:
    goals = Goals(training_loss=0.5)
    groups = grouped(map(Run, long_names), goals)
    columns = columns_for(goals)
    table, left_out = compare_table(groups, columns, Console(width=width))
    text = printed(table, width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines()) and "…" not in text
    assert "on_stale=downweight" in text and "on_stale=compensate" in text
    shown = len(columns) - len(left_out)
    assert left_out == [column.title for column in columns[shown:]]
    assert shown >= {60: 1, 80: 2, 120: 5, 300: len(columns)}[width]


def test_columns_are_those_that_were_chosen(long_names: list[Path]) -> None:
    table = ps_lab("compare", *long_names, "--columns", "seconds_per_version")
    assert "s per version" in table.out and "accuracy" not in table.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--columns", "training_los"), "unknown column 'training_los'; did you mean \"training_loss\"?"),
        (("--columns", "training_loss,training_loss"), "expected each column once"),
        (("--columns", "training_loss", "--json"), "--json, which has all measures"),
        (("--columns", "seconds_to_training_loss"), "expected also --training-loss X"),
        (("--chart", "pie=a.svg"), "expected PLOT=FILE with PLOT one of training_loss, timeline"),
        (("--chart", "training_loss"), "expected PLOT=FILE"),
        (("--chart", "training_loss=a.svg", "--chart", "shares=a.svg"), "got a.svg twice"),
        (("--chart", "training_loss=a.gif"), "ends in .svg or .png"),
        (("--chart", "bound=a.svg"), "no bound to draw: async: the constants"),
        (("--best",), "expected a goal"),
    ],
)
def test_what_cannot_be_shown(
    options: tuple[str, ...], message: str, timed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ps_lab("compare", timed.path, *options)
    assert said.code == ExitCode.USAGE and message in " ".join(said.err.split())


def test_a_run_is_no_seed_beside_itself(timed: Run) -> None:
    said = ps_lab("compare", timed.path, timed.path / ".." / timed.path.name)
    assert said.code == ExitCode.USAGE and "expected each run once" in said.err


def test_the_best_setting_of_each_policy_is_first_with_all_its_seeds(tmp_path: Path) -> None:
    """0.0001 never arrives; 0.05 does, in time."""
    runs = [
        simulate(
            tmp_path / f"{policy}-{rate}-{seed}",
            policy,
            run={"seed": seed},
            optimizer={"learning_rate": rate},
        )
        for policy in ("sync", "async")
        for rate in (0.0001, 0.05)
        for seed in (0, 1)
    ]
    goals = Goals(training_loss=2.15)
    best = best_of_each(grouped(runs, goals), goals)
    assert [group.label for group in best] == ["async, learning_rate=0.05", "sync, learning_rate=0.05"]
    assert best[0].spread("seconds_to_training_loss").mean < best[1].spread("seconds_to_training_loss").mean
    with pytest.raises(RunError, match="expected a goal"):
        best_of_each(best, Goals())
