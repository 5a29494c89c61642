"""What advice starts from: a run whose steps are measured, or an experiment that declares how long they take."""

from pathlib import Path
from statistics import fmean

from pslab.compare.predict import StepTimes, factors_of, step_times_of
from pslab.runs.folder import Run
from pswire.config.experiment import Experiment, load_experiment
from pswire.config.sections import FaultsSection, LinksSection

# Steps of each worker below which its pace is not known.
LEAST_STEPS = 200
# A run whose second half is slower or faster than its first by this share says nothing about the next one.
DRIFT = 0.2
TRACE = "steps.csv"
# Contributions between two evaluations of a play.
CONTRIBUTIONS = 10


class AdviceError(ValueError):
    """Advice that cannot be given; the text has the reason, and what to do."""


def load_source(path: Path, folder: Path, cluster: Path | None) -> Experiment:
    """Return the experiment that is to be played, with the steps' times; `folder` gets a file of measured ones.

    `cluster`: an experiment file whose cluster, links, faults and workers stand in for the source's own.
    Raises AdviceError, RunError, ExperimentError.
    """
    if path.is_dir():
        run = Run(path)
        times = step_times_of(run)
        check_times(times)
        experiment = _measured(run.experiment, times, folder)
    else:
        experiment = load_experiment(path)
    if cluster is not None:
        other = load_experiment(cluster)
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
    return experiment


def check_times(times: StepTimes) -> None:
    """Raises AdviceError where the steps are too few, or their pace drifted."""
    for rank, own in sorted(times.by_worker.items()):
        if len(own) < LEAST_STEPS:
            raise AdviceError(
                f"worker {rank} has {len(own)} steps in this run: expected {LEAST_STEPS} or more of each worker, "
                "to know its pace; run longer"
            )
        early, late = fmean(own[: len(own) // 2]), fmean(own[len(own) // 2 :])
        if max(early, late) > (1 + DRIFT) * min(early, late):
            raise AdviceError(
                f"worker {rank} took {early:.3g} s a step in the first half of this run and {late:.3g} s in the "
                f"second: expected a pace that drifts by less than {DRIFT:.0%}; run on a machine without other load"
            )


def _measured(experiment: Experiment, times: StepTimes, folder: Path) -> Experiment:
    trace = folder / TRACE
    trace.write_text("".join(f"{time!r}\n" for time in times.mixed()), encoding="utf-8")
    simulation = experiment.simulation.model_copy(
        update={"compute": f"trace({trace})", "factors": factors_of(experiment, times)}
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
