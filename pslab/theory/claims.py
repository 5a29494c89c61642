"""Measured beside expected, for one run: only what holds for it, and why nothing more."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from pslab.runs.folder import EXPERIMENT, SIMULATED, Run
from pslab.theory import ages, bounds, times
from pslab.theory.quadratics import Descent, NoTheoryError, descent
from pslab.theory.steady import Steady, steady

# Two numbers in such a relation: equal in the limit of a long run, at most, or a limit to stay below.
Relation = Literal["=", "<="]
LARGEST = "largest staleness"


@dataclass(frozen=True, slots=True)
class Claim:
    """`what` was measured; theory says `relation` `expected`, by `formula` of `source`."""

    what: str
    measured: float
    relation: Relation
    expected: float
    formula: str
    source: str
    digits: int = 4  # significant ones, for people

    @property
    def excess(self) -> float:
        """(measured - expected) / expected; 0 where both are 0."""
        if self.expected == 0:
            return 0.0 if self.measured == 0 else math.inf
        return (self.measured - self.expected) / self.expected

    def holds(self, tolerance: float) -> bool:
        """Equal within the relative `tolerance`, or not above the bound."""
        return self.excess <= 0 if self.relation == "<=" else abs(self.excess) <= tolerance


def claims(run: Run) -> list[Claim]:
    """Raises RunError when the run cannot be read. Empty: no formula is known to hold for it."""
    found = steady(run)
    if not found.versions:
        return []
    return [*_staleness(run, found), *_times(run, found), *_rate(run, found)]


def _staleness(run: Run, found: Steady) -> list[Claim]:
    policy, rows = run.summary.policy, []
    mean = ages.mean_staleness(policy, run.summary.workers)
    if mean is not None and not found.churn:
        expected, formula = mean
        rows.append(Claim("mean staleness", found.mean_staleness, "=", expected, formula, ages.LAW))
    most = ages.max_staleness(policy, run.summary.workers)
    if most is not None:
        bound, formula = most
        rows.append(Claim(LARGEST, found.max_staleness, "<=", bound, formula, "the policy's guarantee"))
    return rows


def _times(run: Run, found: Steady) -> list[Claim]:
    # Real processes have costs of their own that no formula knows.
    if not (run.path / EXPERIMENT).is_file() or not run.summary.job.startswith(SIMULATED) or found.churn:
        return []
    expected = times.seconds_per_version(run.experiment, run.summary.policy)
    if expected is None:
        return []
    measured = found.seconds / found.versions
    relation: Relation = "<=" if expected.upper else "="
    return [
        Claim("seconds per version", measured, relation, expected.seconds, expected.formula, expected.source)
    ]


def _rate(run: Run, found: Steady) -> list[Claim]:
    """Below the limit the run converges; what is above it diverges, which is what the row is there to say."""
    try:
        problem = descent(run)
    except NoTheoryError:
        return []
    if not (found.plain and found.constant):
        return []
    limit = bounds.stable_rate(found.max_staleness, problem.smooth)
    return [
        Claim("learning rate", problem.rate, "<=", limit, bounds.STABLE, bounds.STABLE_SOURCE),
    ]


def claims_of(runs: Sequence[Run]) -> list[Claim]:
    """Of runs that differ by their seed: the mean of what was measured, of a largest staleness the largest."""
    found = [claims(run) for run in runs]
    common = set.intersection(*({claim.what for claim in table} for table in found))
    rows = []
    for first in found[0]:
        same = [claim for table in found for claim in table if claim.what == first.what]
        if first.what in common:
            values = [claim.measured for claim in same]
            measured = max(values) if first.what == LARGEST else fmean(values)
            rows.append(replace(first, measured=measured))
    return rows


def which_bound(problem: Descent, found: Steady) -> Literal["gap", "gradient"]:
    """On what there is a bound: the gap, or the mean squared gradient. Raises NoTheoryError."""
    if not found.plain:
        raise NoTheoryError("updates are not the plain mean of their gradients")
    if found.max_staleness == 0:
        if not bounds.sync_applies(problem.rate, problem.smooth):
            raise NoTheoryError(f"the learning rate is above 1 / L = {1 / problem.smooth:g}")
        return "gap"
    if not bounds.delayed_applies(problem.rate, problem.smooth, found.max_staleness):
        raise NoTheoryError(
            f"the learning rate is too large for a bound at staleness {found.max_staleness}: eta L + 2 (eta L T)^2 > 1"
        )
    return "gradient"
