"""What theory says about simulated runs, against what was measured; and where it says nothing, and why."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run
from pslab.theory.measured import BoundedCurve, LawClaim, NoTheoryError, bounded_curve, claims, claims_of

WORKERS = 6
# Of a mean over 400 exponential times, whose own deviation is 5 %.
TOLERANCE = 0.1


def simulate(folder: Path, policy: str, **sections: Any) -> Run:
    """`knobs` are the policy's; timing only unless a problem is given."""
    document: dict[str, Any] = {
        "run": {"versions": 400, "seed": 2},
        "cluster": {"workers": WORKERS},
        "policy": {"name": policy, **sections.pop("knobs", {})},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "simulation": {"compute": "exponential(1)", "interrupt": True},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    finished = run_simulated(Experiment.parse(document), out=folder, quiet=True, force=True)
    assert finished.result.ok, finished.result
    return Run(finished.folder)


def by_name(found: list[LawClaim]) -> dict[str, LawClaim]:
    return {claim.what: claim for claim in found}


# Of each formula one case.
TIMES = [
    ("sync", {"backup": 2}, "shifted_exponential(1, 1)", "="),
    ("k-batch-sync", {"aggregate": 3}, "exponential(1)", "="),
    ("k-async", {"aggregate": 3}, "uniform(1, 2)", "<="),
    ("async", {}, "gamma(4, 0.25)", "="),
    ("k-batch-async", {"aggregate": 3}, "uniform(0, 3)", "="),
]


@pytest.mark.parametrize(("policy", "knobs", "compute", "relation"), TIMES)
def test_seconds_per_version(
    policy: str, knobs: dict[str, Any], compute: str, relation: str, tmp_path: Path
) -> None:
    run = simulate(tmp_path / "run", policy, knobs=knobs, simulation={"compute": compute})
    claim = by_name(claims(run))["seconds per version"]
    assert claim.relation == relation
    assert claim.holds(TOLERANCE), claim


@pytest.mark.parametrize(
    ("policy", "knobs", "expected"),
    [
        ("async", {}, WORKERS - 1),
        ("k-batch-async", {"aggregate": 2}, (WORKERS - 1) / 2),
        ("fedbuff", {"aggregate": 5}, (WORKERS - 1) / 5),
        ("k-async", {"aggregate": 4}, (WORKERS - 4) / 4),
    ],
)
def test_mean_staleness_at_any_speed(
    policy: str, knobs: dict[str, Any], expected: float, tmp_path: Path
) -> None:
    run = simulate(tmp_path / "run", policy, knobs=knobs, simulation={"factors": {"0": 5.0, "1": 0.3}})
    claim = by_name(claims(run))["mean staleness"]
    assert claim.expected == pytest.approx(expected)
    # What is in flight at the end was never applied.
    assert claim.holds(0.04), claim


@pytest.mark.parametrize(
    ("policy", "knobs", "bound"),
    [("bounded", {"max_staleness": 3}, 3), ("ringmaster", {"threshold": 4}, 3), ("rennala", {}, 0)],
)
def test_largest_staleness(policy: str, knobs: dict[str, Any], bound: int, tmp_path: Path) -> None:
    claim = by_name(claims(simulate(tmp_path / "run", policy, knobs=knobs)))["largest staleness"]
    assert (claim.measured, claim.expected, claim.relation) == (bound, bound, "<=")


@pytest.mark.parametrize(
    "sections",
    [
        {"links": {"latency": 0.01}},
        {"faults": {"loss": 0.1}},
        {"simulation": {"interrupt": False}},
        {"simulation": {"compute": "gamma(2, 1)"}},
        {"simulation": {"factors": {"1": 2.0}}},
    ],
    ids=str,
)
def test_no_time_is_claimed_where_the_formula_is_not_for(sections: dict[str, Any], tmp_path: Path) -> None:
    """k-sync needs equal workers, a known order statistic, free messages, and cancelled work that stops at once."""
    run = simulate(tmp_path / "run", "k-sync", run={"versions": 50}, **sections)
    assert "seconds per version" not in by_name(claims(run))


def test_no_mean_is_claimed_where_workers_came_and_went(tmp_path: Path) -> None:
    faults = {"leaves": [{"worker": 1, "at": 20.0}]}
    assert claims(simulate(tmp_path / "run", "async", faults=faults, run={"versions": 400})) == []


def test_the_mean_of_several_seeds_and_the_largest_of_all(tmp_path: Path) -> None:
    runs = [simulate(tmp_path / str(seed), "bounded", run={"seed": seed, "versions": 9}) for seed in range(3)]
    largest = by_name(claims_of(runs))["largest staleness"].measured
    assert largest == max(by_name(claims(run))["largest staleness"].measured for run in runs)


# Bounds


def learned(folder: Path, policy: str, seeds: int = 4, **sections: Any) -> list[Run]:
    learning = {
        "problem": "quadratic",
        "options": {"dimensions": 8, "condition": 4.0, "noise": 0.5, "batches_per_epoch": 2000},
        "evaluate": 1,
    } | sections.pop("simulation", {})
    run = {"versions": 160} | sections.pop("run", {})
    return [
        simulate(folder / str(seed), policy, run=run | {"seed": seed}, simulation=learning, **sections)
        for seed in range(seeds)
    ]


def under(curve: BoundedCurve) -> bool:
    """Both smoothed over ten versions: the bound is on an expectation, and four seeds are few."""
    measured, bound = (np.convolve(line, np.full(10, 0.1), "valid") for line in (curve.measured, curve.bound))
    return bool((measured <= bound).all())


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [("sync", {"backup": 2}), pytest.param("rennala", {"aggregate": 3}, marks=pytest.mark.nightly)],
)
def test_fresh_updates_stay_under_the_bound_of_bottou_curtis_and_nocedal(
    policy: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    curve = bounded_curve(learned(tmp_path, policy, knobs=knobs, optimizer={"learning_rate": 0.2}))
    assert curve.kind == "gap" and under(curve)
    # It is a bound of this run and not of any: at the end it is within a factor of ten.
    assert curve.bound[-1] < 10 * curve.measured[-50:].mean()


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("async", {}),
        ("bounded", {"max_staleness": 3}),
    ],
)
def test_delayed_updates_stay_under_the_bound_of_lian_and_others(
    policy: str, knobs: dict[str, Any], tmp_path: Path
) -> None:
    curve = bounded_curve(learned(tmp_path, policy, knobs=knobs, optimizer={"learning_rate": 0.01}))
    assert curve.kind == "gradient" and bool((curve.measured <= curve.bound).all())
    assert curve.bound[-1] < 10 * curve.measured[-1]


def test_a_wrong_constant_would_be_seen(tmp_path: Path) -> None:
    """Four times the noise that the file says, and the curve leaves the bound."""
    runs = learned(
        tmp_path, "sync", simulation={"options": {"dimensions": 8, "condition": 1.0, "noise": 1.0}}
    )
    curve = bounded_curve(runs)
    assert under(curve)
    quiet = curve.bound[-1] / 4
    assert curve.measured[-50:].mean() > quiet


@pytest.mark.parametrize(
    ("policy", "sections", "reason"),
    [
        ("sync", {"optimizer": {"name": "adam", "learning_rate": 0.01}}, "sgd with a constant learning rate"),
        ("sync", {"optimizer": {"learning_rate": 1.5}}, "above 1 / L = 1"),
        ("sync", {"simulation": {"evaluate": 0}}, "give simulation.evaluate"),
        ("async", {"simulation": {"evaluate": 5}, "optimizer": {"learning_rate": 0.01}}, "evaluate = 1"),
        ("async", {"optimizer": {"learning_rate": 0.2}}, "too large for a bound"),
        ("delay-adaptive", {"optimizer": {"learning_rate": 0.01}}, "plain mean"),
        ("sync", {"simulation": {"options": {"centres": [1.0, 2.0]}}}, "data differ"),
        ("sync", {"simulation": {"problem": "none"}}, "simulated quadratics only"),
        ("local-sgd", {"optimizer": {"learning_rate": 1.0}}, "there is no theory"),
    ],
)
def test_why_there_is_no_bound(policy: str, sections: dict[str, Any], reason: str, tmp_path: Path) -> None:
    if sections.get("simulation", {}).get("problem") == "none":
        sections["simulation"]["options"] = {}
    runs = learned(tmp_path, policy, seeds=1, run={"versions": 40}, **sections)
    with pytest.raises(NoTheoryError, match=reason):
        bounded_curve(runs)
