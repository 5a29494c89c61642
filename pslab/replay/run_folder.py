"""A replay made from a run folder, and the proof that its weights are the run's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.experiment import Experiment
from pslab.replay.execution import Replay
from pslab.replay.records import job_of, model_of, read_records, servers_of
from pslab.runs.folder import EXPERIMENT, SIMULATED, WEIGHTS, Run, RunError
from pslab.simulator.problems import ProblemError, numpy_problem
from psserver import weights_file
from psserver.coordinator import Record
from psserver.decisions.entries import Job
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.weights_file import WeightsFileError
from pswire.config.experiment import FROM_JOB
from psworker.local import Trainer
from psworker.trainers import load_trainer


def replay_of(run: Run) -> Replay:
    """Return the replay of a run. Raises RunError, ExperimentError and JobError."""
    steps = read_records(run)
    job, experiment = job_of(steps), run.experiment
    if experiment.job.script:
        raise RunError(
            f"{run.path}: its workers ran a script, which only the script itself can repeat: expected a run of a [job] "
            "module, whose batches can be computed again"
        )
    if not model_of(steps).optimizer:
        raise RunError(
            f"{run.path}: the job ended before its initial values came: there is nothing to compute again"
        )
    _check_agreement(run, steps, experiment)
    trainer = _trainer(run, job, model_of(steps).optimizer, experiment)
    return Replay(steps, trainer, experiment.job.epochs, experiment.cluster.payload_dtype)


def _check_agreement(run: Run, steps: Sequence[Record], experiment: Experiment) -> None:
    """Raise RunError unless the experiment, which names data and model, is that of the log."""
    job = job_of(steps)
    optimizer: Mapping[str, object] = {}
    try:
        # The optimizer of a compiled model is only in the log.
        if experiment.optimizer.name != FROM_JOB:
            optimizer = build_optimizer(experiment.optimizer.config).config
    except OptimizerError as error:
        raise RunError(f"{run.path / EXPERIMENT}: {error}") from error
    for key, logged, written in (
        ("cluster.servers", servers_of(steps), experiment.cluster.parts),
        ("cluster.workers", job.workers, experiment.cluster.workers),
        ("run.seed", job.seed, experiment.run.seed),
        ("policy.name", job.policy.get("name"), experiment.policy.name),
        *_written("policy", job.policy, experiment.policy.knobs),
        *_written("optimizer", model_of(steps).optimizer, optimizer),
    ):
        if logged != written:
            raise RunError(
                f"{run.path / EXPERIMENT}: {key} is {written!r}, but the decision log was made with {logged!r}: "
                "one of them was edited, or they are of different runs"
            )


def _written(
    section: str, logged: Mapping[str, object], written: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    """Return (key, logged, written) of the keys that both have: others are defaults."""
    return [(f"{section}.{key}", logged[key], value) for key, value in written.items() if key in logged]


def _trainer(run: Run, job: Job, optimizer: Mapping[str, Any], experiment: Experiment) -> Trainer:
    simulation = experiment.simulation
    problem = simulation.problem if job.job.startswith(SIMULATED) else "job"
    if problem == "none" or not (experiment.job.module or problem not in ("auto", "job")):
        raise RunError(f"{run.path}: simulated time only: there are no weights to replay")
    if problem not in ("auto", "job"):
        try:
            return numpy_problem(problem, simulation.options, simulation.units)
        except ProblemError as error:
            raise RunError(f"{run.path / EXPERIMENT}: {error}") from error
    # The replay runs in one process, on the device of the first worker.
    section = experiment.workers.get(0)
    trainer: Trainer = load_trainer(
        experiment, section.device if section else "auto", deterministic=_repeats(run), optimizer=optimizer
    )
    return trainer


def _repeats(run: Run) -> bool:
    """Return True if the run's settings make gradients repeat to the bit. A folder without settings may repeat."""
    if not (run.path / EXPERIMENT).is_file():
        return True
    return run.experiment.run.deterministic or run.summary.job.startswith(SIMULATED)


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the recomputed weights are the run's, bit for bit. `differing`: variable -> largest difference.

    `repeats`: the run's settings make gradients repeat to the bit.
    """

    sha256: str
    recorded: str | None
    differing: dict[str, float]
    repeats: bool = True

    @property
    def holds(self) -> bool:
        return self.sha256 == self.recorded


def prove(run: Run, replay: Replay) -> Proof:
    """Compare the final weights with the fingerprint in summary.json. Raises RunError for a run without summary."""
    recorded, weights = run.summary.weights_sha256, replay.store.weights()
    sha256 = replay.store.sha256()
    saved = run.path / WEIGHTS
    differing = {} if sha256 == recorded or not saved.is_file() else _differing(saved, weights)
    return Proof(sha256, recorded, differing, _repeats(run))


def _differing(saved: Path, weights: dict[str, NDArray[np.float32]]) -> dict[str, float]:
    try:
        before = weights_file.load(saved).arrays
    except (WeightsFileError, OSError) as error:
        raise RunError(f"{saved}: cannot be read: {error}") from error
    found = {}
    for name, values in weights.items():
        other = before.get(name)
        if other is None or other.shape != values.shape:
            found[name] = float("inf")
        elif other.tobytes() != values.tobytes():
            found[name] = float(np.max(np.abs(other.astype(np.float64) - values), initial=0.0))
    return found
