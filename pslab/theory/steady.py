"""The part of a run that formulas speak of: from the first grant until somebody has no more data."""

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from pslab.runs.fold import Fold, mean_of
from pslab.runs.folder import Run
from pswire.decisions import entries as facts


@dataclass(frozen=True, slots=True)
class Steady:
    """`seconds` and `versions` of that part; `staleness` counts what was applied in it.

    `parts`: the smallest number of contributions of an update. `plain`: every update
    was the unweighted mean of its parts, uncompensated, with the full learning
    rate. `constant`: staleness was the same from the n-th version on.
    `churn`: workers came or went.
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
    """Read it off the log, once for each `Run`. Raises RunError when the log cannot be read."""
    log, workers, last = Fold(), run.summary.workers, math.nan
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
