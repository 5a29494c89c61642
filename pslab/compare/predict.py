"""The simulator's prediction of a run, and its error.

A prediction needs the durations of steps. They are either declared, by [simulation], [links] and [faults] of an
experiment, or measured: the times between grant and commit of a run, less the delays that were injected there. What
remains (computing, sending, waiting for a processor) is simulated together with the delays of the predicted run.

One simulated run is one random sample, and so is the real one: 25 drops are 25 ± 5. So a prediction is played several
times. The first play has the run's own seed, and with it the very delays that were injected there; every other play
has a seed of its own.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from pslab.compare.groups import Spread, spread
from pslab.runs.fold import Fold
from pslab.runs.folder import SUMMARY, Run, RunError, Summary
from pslab.simulator import SimulationError, build
from pslab.simulator.worker import Worker
from psserver.policies import build as build_policy
from pswire.config.distributions import Draw, parse, stream
from pswire.config.experiment import Experiment
from pswire.config.run_sections import JobSection
from pswire.config.sections import FaultsSection, LinksSection, SimulationSection
from pswire.decisions import entries as facts
from psworker.local import Rule
from psworker.local import build as build_local


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of steps without injected delays, in seconds, in order; by worker number."""

    by_worker: Mapping[int, tuple[float, ...]]

    @property
    def mean(self) -> float:
        return fmean([time for times in self.by_worker.values() for time in times])

    def mixed(self) -> list[float]:
        """Return the times of all workers in turn, scaled as if each worker had the mean speed."""
        even = [self._even(self.by_worker[rank]) for rank in sorted(self.by_worker)]
        return [time for turn in zip_longest(*even) for time in turn if time is not None]

    def _even(self, times: Sequence[float]) -> list[float]:
        own = fmean(times)
        return [time * self.mean / own for time in times] if own > 0 else list(times)


def step_times_of(run: Run) -> StepTimes:
    """Return the measured step times of a run. Raises RunError if it has no commits, or was not made by ps-lab.

    All steps of a ticket of several batches count with their mean, because the log does not have each. So waiting for
    the slowest is underestimated.
    """
    experiment, log = run.experiment, Fold()
    rule = _local_rule(experiment)
    injected: dict[str, Draw] = {}
    drawn: dict[int, list[float]] = {}
    times: dict[int, list[float]] = {}
    # Worker -> time and batch of its last commit.
    committed: dict[str, tuple[float, int]] = {}
    for entry in run.decisions():
        match entry.fact:
            case facts.Join(worker, _, rank):
                injected[worker] = _injected(experiment, rank)
            case facts.Grant(worker, ticket):
                drawn[ticket] = [injected[worker]() for _ in range(rule.steps)]
            case facts.Commit(worker, ticket, batch) as commit:
                since, delays = log.held[ticket].granted, drawn.pop(ticket)
                before, last = committed.get(worker, (since, -1))
                steps = max(1, min(rule.steps, batch - last))
                # Steps before the pull begin at the last commit. A ticket that was granted ahead begins at the commit
                # of the one before it.
                begun = before if rule.steps_before_pull else max(since, before)
                busy = entry.t - begun - sum(delays[:steps])
                if rule.overlap and last >= 0 and steps > rule.overlap:
                    busy = _overlapped(entry.t, before, since, commit.compute, delays[:steps], rule.overlap)
                each = max(0.0, busy / steps)
                times.setdefault(log.members[worker].rank, []).extend([each] * steps)
                committed[worker] = entry.t, batch
        log.see(entry.fact, entry.t)
    if not times:
        raise RunError(f"{run.path}: nothing was committed, so there are no step times to measure")
    return StepTimes({rank: tuple(found) for rank, found in times.items()})


def _overlapped(
    end: float, before: float, granted: float, compute: float | None, delays: Sequence[float], overlap: int
) -> float:
    """Return the seconds of a ticket whose first steps began at the commit `before`, without its `delays`, one for each
    step.

    From that commit on the worker may have waited for the weights. From the weights on (`compute`) it may still have
    been busy with its first steps, but not both. What the link took beyond these counts as sending does elsewhere.
    """
    rest = delays[overlap:]
    steps = end - before - sum(delays)
    if compute is not None:
        steps = min(steps, (compute - sum(rest)) * len(delays) / len(rest))
    return max(steps, end - granted - sum(rest))


def _local_rule(experiment: Experiment) -> Rule:
    policy = experiment.policy
    try:
        rule = build_policy(policy.name, policy.knobs, experiment.cluster.workers).local_rule
        return build_local(rule.name, rule.knobs, [])
    except ValueError as error:
        raise RunError(f"its policy cannot be built: {error}") from error


def _injected(experiment: Experiment, rank: int) -> Draw:
    section = experiment.workers.get(rank)
    delay = parse(section.delay if section is not None else "constant(0)")
    return delay.draws(stream(experiment.run.seed, rank, "delay"))


# Plays of a prediction. A number from the same distribution lies between their extremes 9 times out of 11.
REPEAT = 10
# Seeds are below this, as in an experiment.
_SEEDS = 2**63


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that are predicted. Staleness in versions; `drops` by worker."""

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
    """The numbers of a run and of each play of its prediction; the first play has the run's own seed."""

    run: Run
    real: Numbers
    plays: tuple[Numbers, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One number, real and predicted. `digits`: decimals worth showing."""

    what: str
    plays: tuple[float, ...]
    real: float
    digits: int

    @property
    def predicted(self) -> Spread:
        return spread(self.plays)

    @property
    def error(self) -> float:
        """The relative error of the mean of all plays."""
        return relative_error(self.predicted.mean, self.real)

    @property
    def within(self) -> bool:
        """True if the real number lies between the smallest and the largest play."""
        return min(self.plays) <= self.real <= max(self.plays)


def prediction_rows(prediction: Prediction) -> list[Row]:
    """Return the predicted numbers as rows. Times are in milliseconds."""
    real, plays = prediction.real, prediction.plays

    def row(what: str, number: Callable[[Numbers], float], digits: int) -> Row:
        return Row(what, tuple(number(play) for play in plays), number(real), digits)

    found = [
        row("ms per version", lambda n: 1e3 * n.seconds_per_version, 2),
        row("versions", lambda n: n.versions, 0),
        row("mean staleness", lambda n: n.mean_staleness, 3),
        row("max staleness", lambda n: n.max_staleness, 0),
        row("dropped", lambda n: n.dropped, 0),
    ]
    if found[-1].real or any(found[-1].plays):
        found += [row(f"dropped of {w}", partial(_dropped_of, w), 0) for w in sorted(real.drops)]
    return found


def _dropped_of(worker: str, numbers: Numbers) -> float:
    return numbers.drops.get(worker, 0)


def predict(run: Run, source: Experiment | StepTimes, repeat: int = REPEAT) -> Prediction:
    """Simulate `run` `repeat` times, timing only.

    `source`: an experiment that declares the durations of steps, or measured ones. Raises RunError and SimulationError.
    """
    batches = _batches(run)
    with _timed(run.experiment, source) as experiment:
        first = experiment.run.seed
        plays = [_simulate(_seeded(experiment, (first + k) % _SEEDS), batches) for k in range(repeat)]
    return Prediction(run, _numbers(run.summary), tuple(map(_numbers, plays)))


def _seeded(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"seed": seed})})


# `batches` only says that the data ends; the real numbers come from `_batches`.
_TIMING = {"problem": "none", "batches": 1, "record": False, "evaluate": 0, "until_accuracy": 0.0}


@contextmanager
def _timed(own: Experiment, source: Experiment | StepTimes) -> Iterator[Experiment]:
    """Provide the run's experiment for a timing-only simulation, with the durations of `source`.

    Measured times are in a temporary file meanwhile. The [job] keeps only its epochs: nothing is evaluated.
    """
    job = JobSection(epochs=own.job.epochs)
    if isinstance(source, Experiment):
        declared = source.simulation.model_copy(update=_TIMING)
        # Policy, cluster and delays stay those of the run.
        yield own.model_copy(
            update={"job": job, "simulation": declared, "links": source.links, "faults": source.faults}
        )
        return
    with tempfile.TemporaryDirectory(prefix="ps-lab-") as folder:
        trace = Path(folder) / "steps.csv"
        trace.write_text("".join(f"{time!r}\n" for time in source.mixed()), encoding="utf-8")
        simulation = SimulationSection(compute=f"trace({trace})", factors=factors_of(own, source))
        yield own.model_copy(
            update={
                "job": job,
                "simulation": simulation.model_copy(update=_TIMING),
                # The measured times include the network.
                "links": LinksSection(),
                "faults": FaultsSection(),
            }
        )


def factors_of(experiment: Experiment, times: StepTimes) -> dict[int, float]:
    """Return each worker's mean step time, relative to the mean of all."""
    if times.mean <= 0:
        return {}
    workers = experiment.cluster.workers
    return {rank: fmean(own) / times.mean for rank, own in times.by_worker.items() if rank < workers}


def _batches(run: Run) -> dict[int, int]:
    """Return worker number -> number of its batches; empty if the job did not end with its data."""
    log, counts, done = Fold(), dict[int, int](), set[int]()
    for entry in run.decisions():
        log.see(entry.fact, entry.t)
        match entry.fact:
            case facts.Commit(worker, _, batch):
                rank = log.members[worker].rank
                counts[rank] = max(counts.get(rank, 0), batch + 1)
            case facts.Done(worker):
                done.add(log.members[worker].rank)
    return counts if done >= set(counts) else {}


def _simulate(experiment: Experiment, batches: Mapping[int, int]) -> Summary:
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
    summary = Summary.read(Path(SUMMARY), cluster.folder.summary)
    if not summary.versions:
        raise SimulationError(
            "the prediction made no version: it is a simulation of time, in which policies see neither losses nor "
            "norms (NaN), so a policy that goes by them cannot be predicted"
        )
    return summary


def _numbers(summary: Summary) -> Numbers:
    return Numbers(
        seconds_per_version=summary.seconds_per_version,
        mean_staleness=summary.mean_staleness,
        max_staleness=max(summary.histogram, default=0),
        versions=summary.versions,
        drops={worker: counts.dropped for worker, counts in summary.contributions.items()},
    )


def relative_error(predicted: float, real: float) -> float:
    """Return (predicted - real) / real; 0 if both are 0, NaN if only the real one is."""
    if real == 0:
        return 0.0 if predicted == 0 else math.nan
    return (predicted - real) / real
