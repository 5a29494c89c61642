"""Durations of steps, measured on a run: the times between grant and commit, less the delays that were injected.

What remains is computing, sending, and waiting for a processor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from pslab.experiment import Experiment
from pslab.runs.fold import LogState
from pslab.runs.folder import Run, RunError
from psserver.decisions import entries as facts
from psserver.policies import build as build_policy
from pswire.config.distributions import Draw, parse, stream
from psworker.local import WorkerRule
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
    experiment, log = run.experiment, LogState()
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


def _local_rule(experiment: Experiment) -> WorkerRule:
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


def factors_of(experiment: Experiment, times: StepTimes) -> dict[int, float]:
    """Return each worker's mean step time, relative to the mean of all."""
    if times.mean <= 0:
        return {}
    workers = experiment.cluster.workers
    return {rank: fmean(own) / times.mean for rank, own in times.by_worker.items() if rank < workers}
