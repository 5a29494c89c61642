"""What a comparison can show besides its table: theory, single charts, the best of each policy."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from pslab.compare.charts import PLOTS, write_picture
from pslab.compare.groups import Group, best_of_each, grouped
from pslab.compare.html import page
from pslab.compare.measure import MEASURES, Goals, measured
from pslab.runs.folder import RunError
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


def test_every_measure_has_a_name(tmp_path: Path) -> None:
    run = measured(simulate(tmp_path / "run", "async", simulation=TIMING), Goals(loss=1.0))
    assert tuple(run.measures.values) == MEASURES


@pytest.fixture(scope="module")
def k_sync_groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """Three settings that learn, simulated once for all plots."""
    folder = tmp_path_factory.mktemp("k-sync")
    runs = [
        simulate(folder / f"{n}", "k-sync", {"aggregate": n}, simulation=LEARNING, optimizer=SGD)
        for n in (1, 2, 3)
    ]
    return grouped([measured(run, Goals()) for run in runs])


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_is_drawn(k_sync_groups: list[Group], plot: str, tmp_path: Path) -> None:
    groups = k_sync_groups
    write_picture(groups, plot, tmp_path / "a.svg")
    ET.fromstring((tmp_path / "a.svg").read_text(encoding="utf-8"))
    write_picture(groups, plot, tmp_path / "new" / "b.png")
    assert (tmp_path / "new" / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_measure_with_a_law_has_it_as_a_dashed_line(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / f"{n}", "k-batch-async", {"aggregate": n}, simulation=TIMING) for n in (1, 2, 4)
    ]
    groups = grouped([measured(run, Goals()) for run in runs])
    write_picture(groups, "mean_staleness", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "stroke-dasharray" in text and "(n - 1)" in text and "policy.aggregate" in text


def test_a_report_has_laws_and_bounds(tmp_path: Path) -> None:
    runs = [
        simulate(tmp_path / "sync", "sync", simulation=LEARNING, optimizer=SGD),
        simulate(
            tmp_path / "async", "async", simulation=LEARNING, optimizer={"name": "sgd", "learning_rate": 0.02}
        ),
        simulate(tmp_path / "adam", "async", simulation=LEARNING, optimizer={"name": "adam"}),
    ]
    text = page(grouped([measured(run, Goals()) for run in runs]), Goals())
    for words in ("Measured and theory", "theorem 4.6", "theorem 1", "mean staleness", "Dutta et al. 2018"):
        assert words in text
    assert "No bound is drawn for async" in text and "of sgd with a constant learning rate" in text
    assert text.count("<svg") == 2 + 1 + 2 * len(runs)


def test_the_options(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMING)
    said = ps_lab("compare", run.path, "--theory", "--chart", f"timeline={tmp_path / 'a.png'}")
    assert said.code == 0 and "n - 1" in said.out and "chart: " in said.out and (tmp_path / "a.png").is_file()
    _, theory = ps_lab("compare", run.path, "--theory", "--json").lines
    (group,) = theory["groups"]
    assert {claim["what"] for claim in group["claims"]} == {"mean staleness", "seconds per version"}
    assert group["claims"][0]["theory"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--chart", "pie=a.svg"), "expected PLOT=FILE with PLOT one of loss, timeline"),
        (("--chart", "loss"), "expected PLOT=FILE"),
        (("--chart", "loss=a.gif"), "ends in .svg or .png"),
        (("--chart", "bound=a.svg"), "no bound to draw: async: the constants"),
        (("--best",), "expected a goal, too"),
    ],
)
def test_what_cannot_be_shown(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = simulate(tmp_path / "run", "async", simulation=TIMING)
    said = ps_lab("compare", run.path, *options)
    assert said.code == ExitCode.USAGE and message in " ".join(said.err.split())


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
    goals = Goals(loss=2.15)
    best = best_of_each(grouped([measured(run, goals) for run in runs]), goals)
    assert [group.label for group in best] == ["async, learning_rate=0.05", "sync, learning_rate=0.05"]
    assert best[0].spread("seconds_to_loss").mean < best[1].spread("seconds_to_loss").mean
    with pytest.raises(RunError, match="expected a goal"):
        best_of_each(best, Goals())
