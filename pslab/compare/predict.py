"""The simulator's prediction of a run, and how far it was off.

A prediction needs to know how long a step takes. A declared one uses the
experiment's [simulation] and delays as they stand. A measured one takes the
times between grant and commit from a run, takes off the delays that were
injected there, and plays what remains (computing, sending, waiting for a
processor) beside the delays of the experiment that it predicts.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from pslab.check import entries as facts
from pslab.runs import Run, RunError, Summary
from pslab.simulator import SimulationError, build
from pslab.simulator.worker import Worker
from psserver.policies import build as build_policy
from psserver.policies import local_rule_of
from pswire.delays import Draw, parse, stream
from pswire.experiment import Experiment
from pswire.sections import FaultsSection, LinksSection, SimulationSection
from psworker.local import Rule
from psworker.local import build as build_local


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of steps without injected delays, in seconds, in order; by worker number."""

    times: Mapping[int, tuple[float, ...]]

    @property
    def mean(self) -> float:
        return fmean([time for times in self.times.values() for time in times])

    def mixed(self) -> list[float]:
        """The times of all workers in turn, each as if its worker were as fast as the mean of all."""
        even = [self._even(self.times[rank]) for rank in sorted(self.times)]
        return [time for turn in zip_longest(*even) for time in turn if time is not None]

    def _even(self, times: Sequence[float]) -> list[float]:
        own = fmean(times)
        return [time * self.mean / own for time in times] if own > 0 else list(times)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is predicted. Staleness in versions; `drops` by worker."""

    seconds_per_version: float
    mean_staleness: float
    max_staleness: int
    versions: int
    drops: Mapping[str, int]

    @property
    def dropped(self) -> int:
        return sum(self.drops.values())


@dataclass(frozen=True, slots=True)
class Prediction:
    run: Run
    real: Numbers
    predicted: Numbers


def pace_of(run: Run) -> Pace:
    """Measured step times of a run. Raises RunError when it has no commits, or was not made by ps-lab.

    The steps of a ticket of several batches count with their mean: how they
    differed is not known, so waiting for the slowest is underestimated.
    """
    experiment, ranks = run.experiment, dict[str, int]()
    rule = _local_rule(experiment)
    injected: dict[str, Draw] = {}
    granted: dict[int, tuple[float, list[float]]] = {}
    times: dict[int, list[float]] = {}
    # By worker: when its last commit was, and of which batch.
    committed: dict[str, tuple[float, int]] = {}
    for entry in run.decisions():
        match entry.fact:
            case facts.Join(worker, _, rank):
                ranks[worker] = rank
                injected[worker] = _injected(experiment, rank)
            case facts.Grant(worker, ticket):
                granted[ticket] = entry.t, [injected[worker]() for _ in range(rule.steps)]
            case facts.Commit(worker, ticket, batch):
                since, delays = granted.pop(ticket)
                before, last = committed.get(worker, (since, -1))
                steps = max(1, min(rule.steps, batch - last))
                # Who roams takes its steps between the last commit and the grant; a ticket that was granted ahead waits
                # for the one before it.
                busy = entry.t - (before if rule.roams else max(since, before)) - sum(delays[:steps])
                times.setdefault(ranks[worker], []).extend([max(0.0, busy / steps)] * steps)
                committed[worker] = entry.t, batch
    if not times:
        raise RunError(f"{run.path}: nothing was committed, so there are no step times to measure")
    return Pace({rank: tuple(found) for rank, found in times.items()})


def _local_rule(experiment: Experiment) -> Rule:
    policy = experiment.policy
    try:
        rule = local_rule_of(build_policy(policy.name, policy.knobs, experiment.cluster.workers))
        return build_local(rule.name, rule.knobs, [])
    except ValueError as error:
        raise RunError(f"its policy cannot be made again: {error}") from error


def _injected(experiment: Experiment, rank: int) -> Draw:
    section = experiment.workers.get(rank)
    delay = parse(section.delay if section is not None else "constant(0)")
    return delay.draws(stream(experiment.run.seed, rank, "delay"))


def predict(run: Run, source: Experiment | Pace) -> Prediction:
    """Simulate what `run` did, timing only, and hold both against each other.

    `source`: an experiment that declares how long steps take, or measured times.
    Raises RunError and SimulationError.
    """
    own = run.experiment
    batches = _batches(run)
    if isinstance(source, Experiment):
        simulation = source.simulation.model_copy(update=_TIMING)
        declared = source.model_copy(update={"simulation": simulation})
        predicted = _simulate(declared, batches)
    else:
        predicted = _measured(own, source, batches)
    return Prediction(run, _numbers(run.summary), predicted)


# Batches of a timing-only run come from `_batches`; the number here only says that there is an end.
_TIMING = {"problem": "none", "batches": 1, "record": False, "evaluate": 0, "until_accuracy": 0.0}


def _measured(experiment: Experiment, pace: Pace, batches: Mapping[int, int]) -> Numbers:
    with tempfile.TemporaryDirectory(prefix="ps-lab-") as folder:
        trace = Path(folder) / "steps.csv"
        trace.write_text("".join(f"{time!r}\n" for time in pace.mixed()), encoding="utf-8")
        factors = {}
        if pace.mean > 0:
            factors = {
                r: fmean(times) / pace.mean
                for r, times in pace.times.items()
                if r < experiment.cluster.workers
            }
        simulation = SimulationSection(compute=f"trace({trace})", factors=factors)
        plain = experiment.model_copy(
            update={
                "simulation": simulation.model_copy(update=_TIMING),
                # What the network costs is in the measured times.
                "links": LinksSection(),
                "faults": FaultsSection(),
            }
        )
        return _simulate(plain, batches)


def _batches(run: Run) -> dict[int, int]:
    """Worker number -> how many batches it had; empty when the job was ended by something else than its data."""
    ranks: dict[str, int] = {}
    counts: dict[int, int] = {}
    done = set()
    for entry in run.decisions():
        match entry.fact:
            case facts.Join(worker, _, rank):
                ranks[worker] = rank
            case facts.Commit(worker, _, batch):
                counts[ranks[worker]] = max(counts.get(ranks[worker], 0), batch + 1)
            case facts.Done(worker):
                done.add(ranks[worker])
    return counts if done >= set(counts) else {}


def _simulate(experiment: Experiment, batches: Mapping[int, int]) -> Numbers:
    cluster = build(experiment)

    def numbered(worker: Worker, first: int) -> Iterator[tuple[int, Any]]:
        if not batches:
            return ((number, None) for number in count(first))
        return ((number, None) for number in range(first, batches.get(worker.index, 0)))

    if not batches and not experiment.run.versions and not experiment.simulation.seconds:
        raise SimulationError("the run was cut off, so its end cannot be predicted")
    cluster.batches = numbered
    cluster.run()
    cluster.conclude()
    summary = cluster.folder.summary
    histograms = [{int(tau): n for tau, n in table.items()} for table in summary["staleness"].values()]
    return _count(
        summary["wall_seconds"],
        summary["versions"],
        histograms,
        {worker: counts["dropped"] for worker, counts in summary["contributions"].items()},
    )


def _numbers(summary: Summary) -> Numbers:
    drops = {worker: counts.dropped for worker, counts in summary.contributions.items()}
    return _count(summary.wall_seconds, summary.versions, list(summary.staleness.values()), drops)


def _count(seconds: float, versions: int, histograms: Any, drops: Mapping[str, int]) -> Numbers:
    pairs = [(tau, n) for histogram in histograms for tau, n in histogram.items()]
    applied = sum(n for _, n in pairs)
    mean = sum(tau * n for tau, n in pairs) / applied if applied else math.nan
    per_version = seconds / versions if versions else math.nan
    return Numbers(per_version, mean, max((tau for tau, _ in pairs), default=0), versions, dict(drops))


def relative_error(predicted: float, real: float) -> float:
    """(predicted - real) / real; 0 when both are 0, NaN when only the real one is."""
    if real == 0:
        return 0.0 if predicted == 0 else math.nan
    return (predicted - real) / real
