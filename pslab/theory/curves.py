"""The bound beside the measured curve, for runs that differ by their seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslab.runs.folder import Metric, Run
from pslab.theory import bounds
from pslab.theory.claims import which_bound
from pslab.theory.quadratics import Descent, NoTheoryError, descent
from pslab.theory.steady import Steady, steady

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoundedCurve:
    """`measured` is the mean over the runs at `versions`; `bound` is what its expectation cannot exceed.

    `kind`: "gap" is f(x_v) - f(x*); "gradient" is the mean of |grad f(x_i)|^2 over i = 0 .. v.
    """

    kind: str
    versions: Series
    measured: Series
    bound: Series
    formula: str
    source: str


def bounded_curve(runs: Sequence[Run]) -> BoundedCurve:
    """Raises NoTheoryError saying why there is none, and RunError when a run cannot be read."""
    problem, found = descent(runs[0]), [steady(run) for run in runs]
    worst = max(found, key=lambda one: one.max_staleness)
    kinds = {which_bound(problem, one) for one in found}
    kind = "gradient" if "gradient" in kinds else kinds.pop()
    parts = min(one.parts for one in found)
    versions, gaps, gradients = _evaluations(runs, problem)
    if kind == "gap":
        line = [_sync(int(version), problem, parts) for version in versions]
        return BoundedCurve(kind, versions, gaps, np.array(line), bounds.SYNC, bounds.SYNC_SOURCE)
    if len(versions) <= versions[-1]:
        raise NoTheoryError("the bound is on the mean over all versions: give simulation.evaluate = 1")
    means = np.cumsum(gradients) / np.arange(1, len(gradients) + 1)
    line = [_delayed(int(version) + 1, problem, worst, parts) for version in versions]
    return BoundedCurve(kind, versions, means, np.array(line), bounds.DELAYED, bounds.DELAYED_SOURCE)


def _sync(version: int, problem: Descent, parts: int) -> float:
    return bounds.sync_gap(
        version,
        gap=problem.gap,
        rate=problem.rate,
        convex=problem.convex,
        smooth=problem.smooth,
        variance=problem.variance,
        parts=parts,
    )


def _delayed(versions: int, problem: Descent, worst: Steady, parts: int) -> float:
    return bounds.delayed_gradient(
        versions,
        gap=problem.gap,
        rate=problem.rate,
        smooth=problem.smooth,
        variance=problem.variance,
        parts=parts,
        staleness=worst.max_staleness,
    )


def _evaluations(runs: Sequence[Run], problem: Descent) -> tuple[Series, Series, Series]:
    """Versions that every run evaluated, version 0 among them; mean gap, and mean squared gradient there."""
    tables = []
    for run in runs:
        rows = {m.version: (m.metrics["loss"], m.metrics["gradient"] ** 2) for m in _evaluated(run)}
        tables.append({0: (problem.gap, problem.squared), **rows})
    versions = sorted(set.intersection(*(set(table) for table in tables)))
    if len(versions) < 3:
        raise NoTheoryError("the run was not evaluated on its way: give simulation.evaluate")
    values = np.array([[table[version] for version in versions] for table in tables]).mean(axis=0)
    return np.array(versions, dtype=np.float64), values[:, 0], values[:, 1]


def _evaluated(run: Run) -> list[Metric]:
    every = run.experiment.simulation.evaluate
    return [m for m in run.metrics() if m.kind == "eval" and every and m.version % every == 0]
