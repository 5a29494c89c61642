"""Measured numbers beside theory: the laws that hold for a run, and the bound beside the measured curve."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pslab.runs.fold import LogState, mean_of
from pslab.runs.folder import EXPERIMENT, SIMULATED, Run
from pslab.runs.summary import Metric
from pslab.simulator.problems import numpy_problem
from pslab.simulator.problems.quadratic import Quadratic
from pslab.theory import formulas
from psserver import policies
from psserver.decisions import entries as facts
from psserver.optimizers import build


@dataclass(frozen=True, slots=True)
class Steady:
    """The part of a run from the first grant until the first worker has no more data.

    `seconds`, `versions`: its length; `staleness`: counts of its applied contributions. `parts`: the smallest number of
    contributions of an update. `plain`: every update was the unweighted, uncompensated mean of its parts, with the full
    learning rate. `constant`: staleness was the same from the n-th version on. `churn`: workers left, or lost their
    connection.
    """

    seconds: float
    versions: int
    staleness: Counter[int]
    parts: int
    plain: bool
    constant: bool
    churn: bool

    @property
    def mean_staleness(self) -> float:
        return mean_of(self.staleness)

    @property
    def max_staleness(self) -> int:
        return max(self.staleness, default=0)


@lru_cache(maxsize=256)
def steady(run: Run) -> Steady:
    """Measure the steady part from the log, once per `Run`. Raises RunError if the log cannot be read."""
    log, workers, last = LogState(), run.summary.workers, math.nan
    plain, churn, parts = True, False, 0
    late: set[int] = set()
    for entry in run.decisions():
        match entry.fact:
            case facts.Apply() as update:
                last = entry.t
                parts = min(parts or len(update.parts), len(update.parts))
                plain = plain and _is_mean(update)
                late.update(part.staleness for part in update.parts if update.version > workers)
            case facts.Done() | facts.Stop():
                break
            case facts.Leave() | facts.Lost() | facts.Back():
                churn = True
        log.see(entry.fact, entry.t)
    seconds = math.nan if log.began is None else last - log.began
    return Steady(seconds, log.versions, log.histogram, parts, plain, len(late) == 1, churn)


def _is_mean(update: facts.Apply) -> bool:
    share = 1 / len(update.parts)
    even = all(math.isclose(part.weight, share, rel_tol=1e-6) for part in update.parts)
    return even and update.lr_scale == 1 and all(not part.compensation for part in update.parts)


class NoTheoryError(ValueError):
    """The assumptions of the theory do not hold for a run; the text says which."""


@dataclass(frozen=True, slots=True)
class Descent:
    """SGD on a quadratic. `gap`: f(x_0) - f(x*); `squared`: |grad f(x_0)|^2; `variance`: sigma^2 of one gradient."""

    rate: float
    convex: float
    smooth: float
    variance: float
    gap: float
    squared: float


def descent(run: Run) -> Descent:
    """Return the constants of a run's problem. Raises NoTheoryError, and RunError if the run cannot be read."""
    if not (run.path / EXPERIMENT).is_file() or run.experiment.simulation.problem != "quadratic":
        raise NoTheoryError("the constants of the problem are known for simulated quadratics only")
    if not _plain(run):
        raise NoTheoryError("there is no theory here for updates under this policy")
    problem = numpy_problem("quadratic", run.experiment.simulation.options).problem
    assert isinstance(problem, Quadratic)
    if len(set(problem.centres)) > 1 or len(set(problem.curvatures)) > 1:
        raise NoTheoryError("the workers' data differ, so a gradient is not an unbiased one")
    start = problem.evaluate(problem.initial())
    curvature = problem.curvatures[0]
    return Descent(
        rate=_constant_rate(run),
        convex=curvature * float(problem.h.min()),
        smooth=curvature * float(problem.h.max()),
        variance=problem.dimensions * problem.noise**2,
        gap=start["loss"],
        squared=start["gradient"] ** 2,
    )


def _plain(run: Run) -> bool:
    """Return True if contributions are gradients at the granted version, and updates are sums of them."""
    knobs = {key: value for key, value in run.summary.policy.items() if key != "name"}
    name = str(run.summary.policy["name"])
    if name not in policies.names():
        return False
    policy = policies.build(name, knobs, run.summary.workers)
    return policy.local_rule.plain and not policy.tensors.lists


def _constant_rate(run: Run) -> float:
    config = run.summary.optimizer
    rate = config.get("learning_rate")
    # The config has every default, so plain SGD has exactly these two entries.
    if config != build({"name": "sgd", "learning_rate": rate}).config or not isinstance(rate, int | float):
        raise NoTheoryError("the theory is of sgd with a constant learning rate")
    return float(rate)


# "=": equal in the limit of a long run; "<=": at most; ">=": at least.
Relation = Literal["=", "<=", ">="]
LARGEST = "largest staleness"


@dataclass(frozen=True, slots=True)
class LawClaim:
    """A number that was measured (NaN where none was) beside the `expected` one, by `formula` of `source`."""

    what: str
    measured: float
    relation: Relation
    expected: float
    formula: str
    source: str

    @property
    def excess(self) -> float:
        """(measured - expected) / expected; 0 if both are 0."""
        if self.expected == 0:
            return 0.0 if self.measured == 0 else math.inf
        return (self.measured - self.expected) / self.expected

    def holds(self, tolerance: float) -> bool:
        """Return True if the numbers are equal within the relative `tolerance`, or the bound holds."""
        return self.excess <= 0 if self.relation == "<=" else abs(self.excess) <= tolerance


def claims(run: Run) -> list[LawClaim]:
    """Return the laws that hold for a run; empty if none is known. Raises RunError if the run cannot be read."""
    found = steady(run)
    # The formulas are of one policy for the whole run.
    if not found.versions or run.summary.began_with:
        return []
    return [*_staleness(run, found), *_times(run, found), *_rate(run, found)]


def _staleness(run: Run, found: Steady) -> list[LawClaim]:
    policy, rows = run.summary.policy, []
    mean = formulas.mean_staleness(policy, run.summary.workers)
    if mean is not None and not found.churn:
        expected, formula = mean
        rows.append(LawClaim("mean staleness", found.mean_staleness, "=", expected, formula, formulas.LAW))
    most = formulas.max_staleness(policy, run.summary.workers)
    if most is not None:
        bound, formula = most
        rows.append(LawClaim(LARGEST, found.max_staleness, "<=", bound, formula, "the policy's guarantee"))
    return rows


def _times(run: Run, found: Steady) -> list[LawClaim]:
    # Real processes have costs that no formula has.
    if not (run.path / EXPERIMENT).is_file() or not run.summary.job.startswith(SIMULATED) or found.churn:
        return []
    expected = formulas.seconds_per_version(run.experiment, run.summary.policy)
    if expected is None:
        return []
    measured = found.seconds / found.versions
    relation: Relation = "<=" if expected.upper else "="
    return [
        LawClaim(
            "seconds per version", measured, relation, expected.seconds, expected.formula, expected.source
        )
    ]


def _rate(run: Run, found: Steady) -> list[LawClaim]:
    """Return the limit of the learning rate, above which the run diverges."""
    try:
        problem = descent(run)
    except NoTheoryError:
        return []
    if not (found.plain and found.constant):
        return []
    limit = formulas.stable_rate(found.max_staleness, problem.smooth)
    return [
        LawClaim("learning rate", problem.rate, "<=", limit, formulas.STABLE, formulas.STABLE_SOURCE),
    ]


def claims_of(runs: Sequence[Run]) -> list[LawClaim]:
    """Return the laws of runs that differ by their seed, with means of measured numbers (the largest for LARGEST), and
    the end of their bounded curve."""
    found = [claims(run) for run in runs]
    common = set.intersection(*({claim.what for claim in table} for table in found))
    rows = []
    for first in found[0]:
        same = [claim for table in found for claim in table if claim.what == first.what]
        if first.what in common:
            values = [claim.measured for claim in same]
            measured = max(values) if first.what == LARGEST else fmean(values)
            rows.append(replace(first, measured=measured))
    with suppress(NoTheoryError):
        rows.append(_end(bounded_curve(runs)))
    return rows


def _end(curve: "BoundedCurve") -> LawClaim:
    what = "f(x_v) - f(x*)" if curve.kind == "gap" else "mean |grad f|^2"
    measured, bound = float(curve.measured[-1]), float(curve.bound[-1])
    return LawClaim(
        f"{what}, v = {curve.versions[-1]:.0f}", measured, "<=", bound, curve.formula, curve.source
    )


def which_bound(problem: Descent, found: Steady) -> Literal["gap", "gradient"]:
    """Return which quantity has a bound: the gap, or the mean squared gradient. Raises NoTheoryError."""
    if not found.plain:
        raise NoTheoryError("updates are not the plain mean of their gradients")
    if found.max_staleness == 0:
        if not formulas.sync_applies(problem.rate, problem.smooth):
            raise NoTheoryError(f"the learning rate is above 1 / L = {1 / problem.smooth:g}")
        return "gap"
    if not formulas.delayed_applies(problem.rate, problem.smooth, found.max_staleness):
        raise NoTheoryError(
            f"the learning rate is too large for a bound at staleness {found.max_staleness}: eta L + 2 (eta L T)^2 > 1"
        )
    return "gradient"


Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BoundedCurve:
    """A curve and its bound. `measured`: the mean over the runs at `versions`; `bound`: of its expectation.

    `kind`: "gap" is f(x_v) - f(x*); "gradient" is the mean of |grad f(x_i)|^2 over i = 0 .. v.
    """

    kind: str
    versions: Series
    measured: Series
    bound: Series
    formula: str
    source: str


def bounded_curve(runs: Sequence[Run]) -> BoundedCurve:
    """Return the bounded curve of runs. Raises NoTheoryError, which says why there is none, and RunError."""
    problem, found = descent(runs[0]), [steady(run) for run in runs]
    kinds = {which_bound(problem, one) for one in found}
    kind = "gradient" if "gradient" in kinds else kinds.pop()
    versions, gaps, gradients = _evaluations(runs, problem)
    common: dict[str, Any] = {
        "gap": problem.gap,
        "rate": problem.rate,
        "smooth": problem.smooth,
        "variance": problem.variance,
        "parts": min(one.parts for one in found),
    }
    if kind == "gap":
        line = [formulas.sync_gap(int(version), convex=problem.convex, **common) for version in versions]
        return BoundedCurve(kind, versions, gaps, np.array(line), formulas.SYNC, formulas.SYNC_SOURCE)
    if len(versions) <= versions[-1]:
        raise NoTheoryError("the bound is on the mean over all versions: give simulation.evaluate = 1")
    means = np.cumsum(gradients) / np.arange(1, len(gradients) + 1)
    stalest = max(one.max_staleness for one in found)
    line = [formulas.delayed_gradient(int(version) + 1, staleness=stalest, **common) for version in versions]
    return BoundedCurve(kind, versions, means, np.array(line), formulas.DELAYED, formulas.DELAYED_SOURCE)


def _evaluations(runs: Sequence[Run], problem: Descent) -> tuple[Series, Series, Series]:
    """Return the versions that every run evaluated, from 0 on, with mean gap and mean squared gradient there."""
    tables = []
    for run in runs:
        rows = {m.version: (m.metrics["loss"], m.metrics["gradient"] ** 2) for m in _evaluated(run)}
        tables.append({0: (problem.gap, problem.squared), **rows})
    versions = sorted(set.intersection(*(set(table) for table in tables)))
    if len(versions) < 3:
        raise NoTheoryError("the run was not evaluated before its end: give simulation.evaluate")
    values = np.array([[table[version] for version in versions] for table in tables]).mean(axis=0)
    return np.array(versions, dtype=np.float64), values[:, 0], values[:, 1]


def _evaluated(run: Run) -> list[Metric]:
    every = run.experiment.simulation.evaluate
    return [m for m in run.metrics() if m.kind == "eval" and every and m.version % every == 0]
