"""Simulated runs of a cluster, for time only: nothing is computed.

One simulated run is one random sample, and so is the real one: 25 drops are 25 ± 5. So a run is played several times.
The first play has the run's own seed, and with it the very delays that were injected there; every other play has a seed
of its own.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from pslab.experiment import Experiment
from pslab.predict.steps import StepTimes, factors_of
from pslab.runs.summary import Summary
from pslab.sections import FaultsSection, LinksSection, SimulationSection
from pslab.simulator import SimulationError, build
from pslab.simulator.store import SizedStore
from pslab.simulator.worker import Worker
from pslab.theory.measured import LARGEST
from psserver.policies import build as build_policy
from pswire.config.distributions import parse
from pswire.config.run_sections import JobSection
from pswire.model.plan import Plan
from pswire.transport.wire import wire_named

# Plays of a prediction. A number from the same distribution lies between their extremes 9 times out of 11.
REPEAT = 10
# Versions of a play where nothing says when it ends.
VERSIONS = 200
# Seeds are below this, as in an experiment.
_SEEDS = 2**63


# By name, as the table shows them.
Numbers = Mapping[str, float]
VERSION: Final = "seconds per version"
BATCH: Final = "seconds per batch"


def numbers_of(summary: Summary, batches: int) -> Numbers:
    """Return the numbers of a run whose contributions have `batches` batches each; drops by worker if there are any."""
    counts = summary.contributions
    committed = sum(own.committed for own in counts.values())
    worked = summary.wall_seconds * len(counts)
    drops = {f"dropped of {worker}": float(counts[worker].dropped) for worker in sorted(counts)}
    found = {
        VERSION: summary.seconds_per_version,
        BATCH: worked / (committed * batches) if committed else math.nan,
        "versions": float(summary.versions),
        "mean staleness": summary.mean_staleness,
        LARGEST: float(max(summary.histogram, default=0)),
        "dropped": sum(drops.values()),
    }
    return found | drops if found["dropped"] else found


def play(
    experiment: Experiment,
    pace: Experiment | StepTimes,
    repeat: int,
    plan: Plan | None = None,
    batches: Mapping[int, int] | None = None,
) -> tuple[Numbers, ...]:
    """Simulate `repeat` runs, timing only, and return their numbers.

    `pace`: an experiment that declares the durations of steps, or measured ones. `plan`: of the model, for the bytes on
    the links. `batches`: worker number -> its batches, where the data ends the run. Raises SimulationError.
    """
    with _timed(experiment, pace) as timed:
        first = timed.run.seed
        return tuple(
            _played(_seeded(timed, (first + k) % _SEEDS), plan, batches or {}) for k in range(repeat)
        )


def _seeded(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"run": experiment.run.model_copy(update={"seed": seed})})


# `batches` only says that the data ends; the real numbers come from `play`'s own.
_TIMING = {
    "problem": "none",
    "options": {},
    "batches": 1,
    "record": False,
    "evaluate": 0,
    "until_accuracy": 0.0,
}


@contextmanager
def _timed(own: Experiment, pace: Experiment | StepTimes) -> Iterator[Experiment]:
    """Provide the run's experiment for a timing-only simulation, with the durations of `pace`.

    Measured times are in a temporary file meanwhile. The [job] keeps only its epochs: nothing is evaluated.
    """
    job = JobSection(epochs=own.job.epochs)
    if isinstance(pace, Experiment):
        declared = pace.simulation.model_copy(update=_TIMING)
        # Policy, cluster and delays stay those of the run.
        yield own.model_copy(
            update={"job": job, "simulation": declared, "links": pace.links, "faults": pace.faults}
        )
        return
    with tempfile.TemporaryDirectory(prefix="ps-lab-") as folder:
        trace = Path(folder) / "steps.csv"
        trace.write_text("".join(f"{time!r}\n" for time in pace.mixed()), encoding="utf-8")
        simulation = SimulationSection(compute=f"trace({trace})", factors=factors_of(own, pace))
        yield own.model_copy(
            update={
                "job": job,
                "simulation": simulation.model_copy(update=_TIMING),
                # The measured times include the network.
                "links": LinksSection(),
                "faults": FaultsSection(),
            }
        )


def _played(experiment: Experiment, plan: Plan | None, batches: Mapping[int, int]) -> Numbers:
    cluster = build(experiment)
    policy, size = experiment.policy, experiment.cluster
    parts = build_policy(policy.name, policy.knobs, size.workers, size.servers)
    if plan is not None:
        cluster.store = SizedStore(plan, wire_named(size.payload_dtype), parts.tensors.fragments)

    def numbered(worker: Worker, first: int) -> Iterator[tuple[int, Any]]:
        if not batches:
            return ((number, None) for number in count(first))
        return ((number, None) for number in range(first, batches.get(worker.index, 0)))

    if not batches and not experiment.run.versions and not experiment.simulation.seconds:
        raise SimulationError("the run was cut off, so its end cannot be predicted")
    cluster.batches = numbered
    cluster.run()
    cluster.conclude()
    summary = Summary.read(cluster.folder.summary)
    if not summary.versions:
        raise SimulationError(
            "the simulation made no version: it is one of time, in which policies see neither losses nor norms (NaN), "
            "so a policy that goes by them cannot be predicted"
        )
    return numbers_of(summary, parts.local_rule.batches)


def seconds_of(experiment: Experiment, number: int) -> float:
    """Return the expected seconds of a worker's batch, with its injected delay; infinite if it has no mean."""
    simulation, section = experiment.simulation, experiment.workers.get(number)
    delay = 0.0 if section is None else parse(section.delay).mean
    return parse(simulation.compute).mean * simulation.factors.get(number, 1.0) + delay
