"""Ranking of candidates by their time to the goal, compared seed by seed. Pure: the same plays, the same ranking."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslab.advise.shelf import Candidate
from pslab.compare.halving import Result, score

# Resamplings of the seeds, from a generator of their own: the same plays give the same advice.
RESAMPLED, SEED = 4000, 1
# The middle part of what is likely that an interval holds.
INTERVAL = 0.8
# The relative error of a simulated pace: runs were predicted with errors of 1 to 5 % at their own pace.
PACE = 0.05

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Play(Result):
    """One simulated run up to the goal. `seconds` are virtual.

    `wasted`: the share of committed contributions that was not applied. `least_share`: the slowest worker's part of
    what was applied, as a multiple of an equal part.
    """

    wasted: float
    least_share: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a candidate. `seconds`: the mean over plays that reached the goal, virtual; infinite if none did.
    `ratio`: of times to the fastest `sync`; infinite where the goal was missed under some seed, NaN where no baseline
    reached it. `low`, `high`: as many real runs would show a ratio between them in 4 of 5 cases.

    `best`: the probability of being first, by resampling the seeds. `tied`: it cannot be told from the fastest.
    """

    candidate: Candidate
    plays: int
    reached: int
    seconds: float
    best: float
    ratio: float
    low: float
    high: float
    wasted: float
    least_share: float
    tied: bool


def standing(candidate: Candidate, plays: Collection[Play]) -> tuple[float, ...]:
    """Rank a candidate by how it did so far; of equals, the simplest is first."""
    return (*score(plays), candidate.rank)


def judge(plays: Mapping[Candidate, Mapping[int, Play]]) -> list[Judged]:
    """Judge the candidates that were played with as many seeds as the most-played one, the best first.

    The first choice is the simplest of those that cannot be told from the fastest: their ratio to it, resampled over
    the seeds, has 1 in its interval, and is no larger than the error of a pace explains. Return nothing where no play
    reached the goal.
    """
    if not any(math.isfinite(play.seconds) for own in plays.values() for play in own.values()):
        return []
    most = max(len(own) for own in plays.values())
    ranked = sorted(plays, key=lambda candidate: standing(candidate, plays[candidate].values()))
    finalists = [candidate for candidate in ranked if len(plays[candidate]) == most]
    seeds = sorted(next(iter(plays[candidate] for candidate in finalists)))
    finalists = [candidate for candidate in finalists if sorted(plays[candidate]) == seeds]
    times = np.array([[plays[each][seed].seconds for seed in seeds] for each in finalists])
    means = _resampled(times)
    best = _shares_of_first(means)
    baseline = _baseline(finalists, times)
    # The first of them where each missed the goal under some seed.
    fastest = int(np.argmin(_mean(times)))
    found = []
    for index, candidate in enumerate(finalists):
        own = [plays[candidate][seed] for seed in seeds]
        ratio, low, high = _predicted(times, index, baseline)
        behind, least, _ = _resampled_ratio(means, index, fastest)
        found.append(
            Judged(
                candidate=candidate,
                plays=len(own),
                reached=int(np.isfinite(times[index]).sum()),
                seconds=_average(list(times[index])) if np.isfinite(times[index]).any() else math.inf,
                best=float(best[index]),
                ratio=ratio,
                low=low,
                high=high,
                wasted=_average([play.wasted for play in own]),
                least_share=_average([play.least_share for play in own]),
                tied=index == fastest or (least <= 1.0 and behind <= 1 + PACE),
            )
        )
    found.sort(
        key=lambda each: (
            not each.tied,
            each.candidate.rank if each.tied else each.plays - each.reached,
            each.seconds,
        )
    )
    return found


def _resampled(times: Series) -> Series:
    """Return mean times [resampling, candidate] over seeds drawn with replacement, the same draws for all."""
    count = times.shape[1]
    drawn = np.random.default_rng(SEED).integers(count, size=(RESAMPLED, count))
    return np.asarray(times[:, drawn].mean(axis=2).T)


def _shares_of_first(means: Series) -> Series:
    """Return how often each candidate is first; those that are first together share it."""
    first = (means == means.min(axis=1, keepdims=True)) & np.isfinite(means)
    return np.asarray((first / np.maximum(1, first.sum(axis=1, keepdims=True))).mean(axis=0))


def _mean(times: Series) -> Series:
    return np.asarray(times.mean(axis=1))


def _baseline(finalists: Sequence[Candidate], times: Series) -> int | None:
    """Return the place of the fastest `sync`, over its learning rates."""
    places = [place for place, candidate in enumerate(finalists) if candidate.baseline]
    arrived = [place for place in places if np.isfinite(_mean(times)[place])]
    return min(arrived, key=lambda place: float(_mean(times)[place]), default=None)


def _predicted(times: Series, own: int, other: int | None) -> tuple[float, float, float]:
    """Return the ratio of mean times, and the interval in which that of as many real runs lies.

    Chance counts twice, for the plays and for the real runs, with Student's distribution because seeds are few; the
    error of a pace comes on top. Infinite where goals were missed, NaN without the other.
    """
    if other is None:
        return math.nan, math.nan, math.nan
    if own == other:
        return 1.0, 1.0, 1.0
    if not np.isfinite(times[[own, other]]).all():
        return math.inf, math.inf, math.inf
    ratio, count = float(times[own].mean() / times[other].mean()), times.shape[1]
    if count < 2:
        return ratio, math.nan, math.nan
    deviation = float(np.log(times[own] / times[other]).std(ddof=1))
    random = np.random.default_rng(SEED)
    chance = random.standard_t(count - 1, RESAMPLED) * deviation * math.sqrt(2 / count)
    low, high = _middle(chance + PACE * random.standard_normal(RESAMPLED))
    return ratio, ratio * math.exp(low), ratio * math.exp(high)


def _middle(values: Series) -> tuple[float, float]:
    tail = 50 * (1 - INTERVAL)
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _resampled_ratio(means: Series, own: int, other: int) -> tuple[float, float, float]:
    """Return the mean ratio of times, and its interval by resampling the seeds; infinite where goals were missed."""
    with np.errstate(invalid="ignore"):
        ratios = np.where(np.isfinite(means[:, own]), means[:, own] / means[:, other], math.inf)
    if not np.isfinite(ratios).all():
        return math.inf, math.inf, math.inf
    return float(ratios.mean()), *_middle(ratios)


def _average(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
