"""How long the steps of a run took, its injected delays taken off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from pslab.runs.fold import Fold
from pslab.runs.folder import Run, RunError
from psserver.policies import build as build_policy
from pswire.config.distributions import Draw, parse, stream
from pswire.config.experiment import Experiment
from pswire.decisions import entries as facts
from psworker.local import Rule
from psworker.local import build as build_local


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of steps without injected delays, in seconds, in order; by worker number."""

    by_worker: Mapping[int, tuple[float, ...]]

    @property
    def mean(self) -> float:
        return fmean([time for times in self.by_worker.values() for time in times])

    def mixed(self) -> list[float]:
        """The times of all workers in turn, each as if its worker were as fast as the mean of all."""
        even = [self._even(self.by_worker[rank]) for rank in sorted(self.by_worker)]
        return [time for turn in zip_longest(*even) for time in turn if time is not None]

    def _even(self, times: Sequence[float]) -> list[float]:
        own = fmean(times)
        return [time * self.mean / own for time in times] if own > 0 else list(times)


def step_times_of(run: Run) -> StepTimes:
    """Measured step times of a run. Raises RunError when it has no commits, or was not made by ps-lab.

    The steps of a ticket of several batches count with their mean: how they
    differed is not known, so waiting for the slowest is underestimated.
    """
    experiment, log = run.experiment, Fold()
    rule = _local_rule(experiment)
    injected: dict[str, Draw] = {}
    drawn: dict[int, list[float]] = {}
    times: dict[int, list[float]] = {}
    # By worker: when its last commit was, and of which batch.
    committed: dict[str, tuple[float, int]] = {}
    for entry in run.decisions():
        match entry.fact:
            case facts.Join(worker, _, rank):
                injected[worker] = _injected(experiment, rank)
            case facts.Grant(worker, ticket):
                drawn[ticket] = [injected[worker]() for _ in range(rule.steps)]
            case facts.Commit(worker, ticket, batch):
                since, delays = log.held[ticket].granted, drawn.pop(ticket)
                before, last = committed.get(worker, (since, -1))
                steps = max(1, min(rule.steps, batch - last))
                # Steps before the pull are taken between the last commit and the grant; a ticket that was granted
                # ahead waits for the one before it.
                begun = before if rule.steps_before_pull else max(since, before)
                busy = entry.t - begun - sum(delays[:steps])
                times.setdefault(log.members[worker].rank, []).extend([max(0.0, busy / steps)] * steps)
                committed[worker] = entry.t, batch
        log.see(entry.fact, entry.t)
    if not times:
        raise RunError(f"{run.path}: nothing was committed, so there are no step times to measure")
    return StepTimes({rank: tuple(found) for rank, found in times.items()})


def _local_rule(experiment: Experiment) -> Rule:
    policy = experiment.policy
    try:
        rule = build_policy(policy.name, policy.knobs, experiment.cluster.workers).local_rule
        return build_local(rule.name, rule.knobs, [])
    except ValueError as error:
        raise RunError(f"its policy cannot be made again: {error}") from error


def _injected(experiment: Experiment, rank: int) -> Draw:
    section = experiment.workers.get(rank)
    delay = parse(section.delay if section is not None else "constant(0)")
    return delay.draws(stream(experiment.run.seed, rank, "delay"))
