"""The start of advice: a run whose steps are measured, or an experiment that declares how long they take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from pslab.experiment import Experiment
from pslab.predict.steps import StepTimes, factors_of, step_times_of
from pslab.runs.folder import Run
from pslab.sections import Crash, FaultsSection, LinksSection
from pswire.config.distributions import stream
from pswire.decisions import entries

# Steps of each worker below which its pace is not known.
LEAST_STEPS = 200
# A run whose second half is slower or faster than its first by this share says nothing about the next one.
DRIFT = 0.2
# Standard errors beyond which a difference between mean times is not chance.
CHANCE = 2.0
TRACE = "steps.csv"
# Contributions between two evaluations of a play.
CONTRIBUTIONS = 10
# Crashes of one play; later ones are left out.
MOST_CRASHES = 500


class AdviceError(ValueError):
    """Advice that cannot be given; the text has the reason, and what to do."""


@dataclass(frozen=True, slots=True)
class Outages:
    """The workers that a run lost and that came back: `crashes` within its `seconds`, from the first grant on."""

    crashes: tuple[Crash, ...] = ()
    seconds: float = 0.0

    def faults(self, seed: int) -> FaultsSection:
        """Return the same pattern over and over, begun at a moment that `seed` chooses."""
        if not self.crashes:
            return FaultsSection()
        begun = stream(seed, 0, "outages").random() * self.seconds
        rounds = math.ceil(MOST_CRASHES / len(self.crashes)) + 1
        moments = [
            crash.model_copy(update={"at": round(crash.at + number * self.seconds - begun, 6)})
            for number in range(rounds)
            for crash in self.crashes
        ]
        return FaultsSection(crashes=[crash for crash in moments if crash.at >= 0][:MOST_CRASHES])


def outages_of(run: Run) -> Outages:
    """Return the outages of a run. A worker that was lost and never came back is left out."""
    lost: dict[str, float] = {}
    found: list[Crash] = []
    begun, t = run.first_grant(), 0.0
    for entry in run.decisions():
        t = entry.t
        match entry.fact:
            case entries.Lost(worker):
                lost[worker] = t
            case entries.Join(worker, _, rank) if worker in lost:
                at = lost.pop(worker)
                found.append(Crash(worker=rank, at=max(0.0, at - begun), restart=max(1e-6, t - at)))
            case entries.Back(worker):
                lost.pop(worker, None)
            case entries.Stop():
                break
    return Outages(tuple(found), t - begun)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the advisor: what to play. `outages`: those of the run, if it is a run."""

    experiment: Experiment
    outages: Outages = Outages()


def load_source(path: Path, folder: Path, cluster: Path | None, *, any_pace: bool = False) -> Question:
    """Return what is to be played: with the steps' times, without run.versions. `folder` gets a file of measured ones.

    `cluster`: an experiment file whose cluster, links, faults and workers stand in for the source's own.
    `any_pace`: also of a run whose pace drifted. Raises AdviceError, RunError, ExperimentError.
    """
    outages = Outages()
    if path.is_dir():
        run = Run(path)
        times = step_times_of(run)
        check_times(times, any_pace=any_pace)
        experiment = _measured(run.experiment, times, folder)
        outages = outages_of(run) if cluster is None else outages
    elif any_pace:
        raise AdviceError(f"--any-pace: expected a RUN, got {path}, which declares the pace itself")
    else:
        experiment = Experiment.load(path)
    if cluster is not None:
        other = Experiment.load(cluster)
        simulation = experiment.simulation.model_copy(update={"factors": other.simulation.factors})
        experiment = experiment.model_copy(
            update={
                "cluster": other.cluster,
                "links": other.links,
                "faults": other.faults,
                "workers": other.workers,
                "simulation": simulation,
            }
        )
    _check(experiment)
    # A version of one policy has several times the gradients of another's: a limit would end some of them early.
    unlimited = experiment.run.model_copy(update={"versions": 0})
    return Question(experiment.model_copy(update={"run": unlimited}), outages)


def check_times(times: StepTimes, *, any_pace: bool = False) -> None:
    """Raise AdviceError where the steps are too few, or their pace drifted, unless `any_pace` is fine."""
    for rank, own in sorted(times.by_worker.items()):
        if len(own) < LEAST_STEPS:
            raise AdviceError(
                f"worker {rank} has {len(own)} steps in this run: expected {LEAST_STEPS} or more of each worker, "
                "to know its pace; run longer"
            )
        halves = own[: len(own) // 2], own[len(own) // 2 :]
        early, late = map(fmean, halves)
        chance = CHANCE * math.hypot(*map(_error, halves))
        if not any_pace and max(early, late) > (1 + DRIFT) * min(early, late) and abs(late - early) > chance:
            raise AdviceError(
                f"worker {rank} took {early:.3g} s a step in the first half of this run and {late:.3g} s in the "
                f"second: expected a pace that drifts by less than {DRIFT:.0%}; run on a machine without other "
                "load, or take the steps of both halves as they are with --any-pace"
            )


def _error(times: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return stdev(times) / math.sqrt(len(times))


def pace_factors(experiment: Experiment, times: StepTimes) -> dict[int, float]:
    """Return how much slower each worker is than all are on average, where that is more than chance.

    With heavy tails the means of equal workers differ, and a play would take one of them for a straggler.
    """
    return {
        rank: factor
        for rank, factor in factors_of(experiment, times).items()
        if abs(factor - 1) * times.mean > CHANCE * _error(times.by_worker[rank])
    }


def _measured(experiment: Experiment, times: StepTimes, folder: Path) -> Experiment:
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / TRACE
    trace.write_text("".join(f"{time!r}\n" for time in times.mixed()), encoding="utf-8")
    simulation = experiment.simulation.model_copy(
        update={"compute": f"trace({trace})", "factors": pace_factors(experiment, times)}
    )
    # What the network cost is in the measured times.
    return experiment.model_copy(
        update={"simulation": simulation, "links": LinksSection(), "faults": FaultsSection()}
    )


def _check(experiment: Experiment) -> None:
    if not isinstance(experiment.optimizer.learning_rate, int | float):
        raise AdviceError(
            "optimizer.learning_rate is a schedule: expected a number, which the advisor multiplies; schedules cannot "
            "be compared between policies that make more or fewer versions"
        )
    problem = experiment.simulation.problem
    if problem == "none" or (problem == "auto" and not experiment.job.module):
        raise AdviceError(
            "there is nothing to learn here: expected [job] module, or simulation.problem = logistic, mlp, quadratic "
            "or module:Class of your own"
        )
