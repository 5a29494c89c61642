"""A prediction: the measured, the simulated and the theoretical numbers of runs, or of an experiment."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pslab.compare.groups import RunGroup, Spread, spread
from pslab.experiment import Experiment
from pslab.launch.simulated import model_plan
from pslab.predict.link import link_laws
from pslab.predict.simulation import VERSIONS, Numbers, numbers_of, play
from pslab.predict.steps import StepTimes, step_times_of
from pslab.runs.fold import LogState
from pslab.runs.folder import EXPERIMENT, SIMULATED, Run, RunError
from pslab.simulator import SimulationError
from pslab.theory.measured import LawClaim, claims_of
from psserver.decisions import entries as facts
from psserver.optimizers import OptimizerError
from psserver.policies import PolicyError
from psserver.policies import build as build_policy
from pswire.model.plan import Plan


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """One number: `measured` in each run, `simulated` in each play, and the law that holds for it, if one is known."""

    what: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]
    law: LawClaim | None = None

    @property
    def real(self) -> Spread:
        return spread(self.measured)

    @property
    def predicted(self) -> Spread:
        return spread(self.simulated)

    @property
    def error(self) -> float:
        """The relative error of the mean of all plays; 0 if both means are 0, NaN if only the real one is."""
        return relative_error(self.predicted.mean, self.real.mean)

    @property
    def within(self) -> bool:
        """True if the measured mean lies between the smallest and the largest play."""
        return bool(self.simulated) and min(self.simulated) <= self.real.mean <= max(self.simulated)


def relative_error(predicted: float, real: float) -> float:
    """Return (predicted - real) / real; 0 if both are 0, NaN if only the real one is."""
    if real == 0:
        return 0.0 if predicted == 0 else math.nan
    return (predicted - real) / real


@dataclass(frozen=True, slots=True)
class Prediction:
    """`runs`: those that were measured, none for an experiment. `unknown`: why nothing was simulated; empty if it was.
    The first play has the first run's own seed."""

    label: str
    policy: Mapping[str, Any]
    runs: tuple[Path, ...] = ()
    measured: tuple[Numbers, ...] = ()
    plays: tuple[Numbers, ...] = ()
    laws: Sequence[LawClaim] = ()
    unknown: str = ""
    rows: Sequence[PredictionRow] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _rows(self.measured, self.plays, self.laws))


def _rows(
    measured: Sequence[Numbers], plays: Sequence[Numbers], laws: Sequence[LawClaim]
) -> list[PredictionRow]:
    by_name = {law.what: law for law in laws}
    names = dict.fromkeys(name for each in (*measured, *plays) for name in each)
    rows = [
        PredictionRow(name, _each(measured, name), _each(plays, name), by_name.pop(name, None))
        for name in names
    ]
    return rows + [PredictionRow(law.what, (law.measured,), (), law) for law in by_name.values()]


def _each(numbers: Sequence[Numbers], name: str) -> tuple[float, ...]:
    """Return one number of each; 0 for drops of a worker where nothing was dropped."""
    return tuple(each.get(name, 0.0) for each in numbers)


# Why an experiment cannot be simulated, or has no floor.
REFUSALS = (OptimizerError, PolicyError, RunError, SimulationError)


def predict(group: RunGroup, pace: Experiment | StepTimes | None, repeat: int) -> Prediction:
    """Predict runs that differ by their seed. `pace`: whose durations of steps; the first run's own if None.

    Raises RunError if a run cannot be read.
    """
    runs = tuple(run.run for run in group.runs)
    first, laws, unknown = runs[0], claims_of(runs), ""
    plays: tuple[Numbers, ...] = ()
    batches = 1
    try:
        experiment = first.experiment
        batches = _batches_of_each(experiment)
        plan = _plan_of(experiment)
        if plan is not None:
            laws += link_laws(experiment, plan)
        pace = _own_pace(first, plan) if pace is None else pace
        plays = play(experiment, pace, repeat, plan, _batches(first))
    except REFUSALS as error:
        unknown = str(error)
    measured = tuple(numbers_of(run.summary, batches) for run in runs)
    paths = tuple(run.path for run in runs)
    return Prediction(group.label, first.summary.policy, paths, measured, plays, laws, unknown)


def forecast(
    experiment: Experiment, label: str, pace: Experiment | StepTimes | None, repeat: int
) -> Prediction:
    """Predict an experiment before it is run. `pace`: whose durations of steps; its own if None.

    At its own pace its model is loaded, but not trained. Raises whatever a job's code raises, and SimulationError for
    an experiment without a model.
    """
    policy = {"name": experiment.policy.name, **experiment.policy.knobs}
    plan = model_plan(experiment) if pace is None else _plan_of(experiment)
    if not experiment.run.versions and not experiment.simulation.seconds:
        run = experiment.run.model_copy(update={"versions": VERSIONS})
        experiment = experiment.model_copy(update={"run": run})
    try:
        laws = link_laws(experiment, plan) if plan is not None else []
        plays = play(experiment, experiment if pace is None else pace, repeat, plan)
    except REFUSALS as error:
        return Prediction(label, policy, unknown=str(error))
    return Prediction(label, policy, plays=plays, laws=laws)


def _batches_of_each(experiment: Experiment) -> int:
    """Return the batches of a contribution."""
    policy, cluster = experiment.policy, experiment.cluster
    return build_policy(policy.name, policy.knobs, cluster.workers, cluster.parts).local_rule.batches


def _plan_of(experiment: Experiment) -> Plan | None:
    """Return the layout of a simulated run's model, where the link matters and no code of a job has to be run."""
    simulation = experiment.simulation
    own = ":" in simulation.problem or (simulation.problem in ("auto", "job") and experiment.job.module)
    known = simulation.payload_bytes or simulation.problem not in ("auto", "none", "job")
    return model_plan(experiment) if experiment.links.bandwidth and known and not own else None


def _own_pace(run: Run, plan: Plan | None) -> Experiment | StepTimes:
    """Return what declares the durations of a simulated run, or the measured ones of a real one.

    They are measured, too, where the simulation had links whose load is not known.
    """
    simulated = (run.path / EXPERIMENT).is_file() and run.summary.job.startswith(SIMULATED)
    if simulated and (plan is not None or not run.experiment.links.bandwidth):
        return run.experiment
    return step_times_of(run)


def _batches(run: Run) -> dict[int, int]:
    """Return worker number -> number of its batches; empty if the job did not end with its data."""
    log, counts, done = LogState(), dict[int, int](), set[int]()
    for entry in run.decisions():
        log.see(entry.fact, entry.t)
        match entry.fact:
            case facts.Commit(worker, _, batch):
                rank = log.members[worker].rank
                counts[rank] = max(counts.get(rank, 0), batch + 1)
            case facts.Done(worker):
                done.add(log.members[worker].rank)
    return counts if done >= set(counts) else {}
