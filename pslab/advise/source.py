"""The experiment that advice plays: a run whose steps are measured, or a file that declares how long they take."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import stdev

from pslab.compare.groups import Goals
from pslab.experiment import Experiment
from pslab.predict.steps import StepTimes, factors_of, step_times_of
from pslab.runs.folder import Run
from pslab.sections import FaultsSection, LinksSection

# Steps of each worker below which its pace is not known.
LEAST_STEPS = 200
# Standard errors beyond which a difference between mean times is not chance.
CHANCE = 2.0
TRACE = "steps.csv"


class AdviceError(ValueError):
    """Advice that cannot be given; the text has the reason, and what to do."""


def load_source(path: Path, folder: Path) -> Experiment:
    """Return the experiment that advice is for, without run.versions.

    `folder` gets a file of a run's measured steps. Raises AdviceError, RunError, ExperimentError.
    """
    if path.is_dir():
        run = Run(path)
        times = step_times_of(run)
        check_times(times)
        experiment = _measured(run.experiment, times, folder)
    else:
        experiment = Experiment.load(path)
    _check(experiment)
    # A version of one policy has several times the gradients of another's: a limit would end some of them early.
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"versions": 0})})


def to_be_played(experiment: Experiment, goals: Goals) -> Experiment:
    """Return the experiment as it is played up to a goal: on the simulator."""
    simulation = {"record": True, "until_accuracy": goals.accuracy or 0.0}
    return experiment.model_copy(
        update={
            "simulation": experiment.simulation.model_copy(update=simulation),
            "run": experiment.run.model_copy(update={"checkpoint_every": "", "engine": "simulated"}),
            "job": experiment.job.model_copy(update={"evaluate_every": ""}),
            "cluster": experiment.cluster.model_copy(update={"prefetch": False}),
        }
    )


def check_times(times: StepTimes) -> None:
    """Raise AdviceError where the steps of a worker are too few."""
    for rank, own in sorted(times.by_worker.items()):
        if len(own) < LEAST_STEPS:
            raise AdviceError(
                f"worker {rank} has {len(own)} steps in this run: expected {LEAST_STEPS} or more of each worker, "
                "to know its pace; run longer"
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
