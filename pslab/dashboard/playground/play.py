"""One simulation for the page: like `ps-lab run --engine simulated`, but within a budget and without a folder.

"What if": the settings may change at a moment. The history before it equals that of the unchanged simulation.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pslab.dashboard.playground.settings import NOTHING, Own, Play, SettingsError, experiment_of
from pslab.dashboard.playground.waits import WaitLog
from pslab.dashboard.recording import Recorder
from pslab.experiment import Experiment
from pslab.runs.folder import Metric
from pslab.runs.log import Line, read_log
from pslab.sections import FaultsSection
from pslab.simulator import Cluster, Folder, build
from pslab.simulator.build import step_times
from pslab.simulator.faults import schedule_faults
from psserver.coordinator.outputs import Record
from psserver.optimizers import build as build_optimizer
from psserver.policies import PolicyError
from psserver.policies.succession import successor
from pswire.config.experiment import ExperimentError
from psworker.job.errors import JobError

# Keys that can change while a job runs; a trailing dot stands for the whole section.
CHANGEABLE = (
    "policy.",
    "optimizer.learning_rate",
    "simulation.compute",
    "simulation.factors.",
    "simulation.factors",
    "links.latency",
    "links.bandwidth",
    "faults.crashes",
)


def check_changes(keys: list[str]) -> None:
    """Raise SettingsError for a key that cannot change while a job runs."""
    for key in keys:
        if not any(key == known or (known.endswith(".") and key.startswith(known)) for known in CHANGEABLE):
            known = ", ".join(name.rstrip(".") for name in CHANGEABLE if name != "simulation.factors.")
            raise SettingsError(f"{key} cannot change while a job runs; these can: {known}")


class Schedule:
    """A learning-rate schedule that can be replaced; the next update uses the new one."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def rate(self, version: int) -> np.float32:
        rate: np.float32 = self.now.rate(version)
        return rate


def prepare(cluster: Cluster, before: Experiment, after: Experiment, at: float, rates: Schedule) -> None:
    """Queue the change at time `at`. `rates`: the schedule that the shards' optimizers use.

    Raises SettingsError for settings that cannot change.
    """
    changes: list[Callable[[], None]] = []
    if (before.policy.name, before.policy.knobs) != (after.policy.name, after.policy.knobs):
        size = after.cluster
        try:
            former = cluster.coordinator.policy
            policy = successor(former, after.policy.name, after.policy.knobs, size.workers, size.servers)
        except PolicyError as error:
            raise SettingsError(str(error)) from error
        changes.append(partial(cluster.change_policy, policy))
    if before.optimizer.learning_rate != after.optimizer.learning_rate:
        later = build_optimizer(after.optimizer.config).schedule
        changes.append(partial(setattr, rates, "now", later))
    if before.simulation.compute != after.simulation.compute:
        changes.append(lambda: _times(cluster, after))
    elif before.simulation.factors != after.simulation.factors:
        changes.append(lambda: _factors(cluster, before, after))
    if before.links != after.links:
        links = after.links
        changes.append(lambda: cluster.network.change(links.latency, links.bandwidth))
    known = before.faults.crashes
    crashes = [crash for crash in after.faults.crashes if crash not in known]
    if any(crash.at < at for crash in crashes):
        raise SettingsError(
            f"faults.crashes: expected new crashes at {at:g} s, the moment of the change, or later"
        )
    changes.append(lambda: schedule_faults(cluster, FaultsSection(crashes=crashes), start=False))

    def change() -> None:
        for each in changes:
            each()

    cluster.queue.at(at, change)


def _factors(cluster: Cluster, before: Experiment, after: Experiment) -> None:
    for worker in cluster.workers.values():
        old = before.simulation.factors.get(worker.index, 1.0)
        new = after.simulation.factors.get(worker.index, 1.0)
        if old != new:
            if old == 0:
                worker.compute = step_times(after, worker.index)
            else:
                worker.compute = _scaled(worker.compute, new / old)


def _scaled(draw: Callable[[], float], factor: float) -> Callable[[], float]:
    return lambda: factor * draw()


def _times(cluster: Cluster, after: Experiment) -> None:
    for worker in cluster.workers.values():
        worker.compute = step_times(after, worker.index)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one simulation: log entries, and seconds of processor time."""

    entries: int = 8000
    seconds: float = 4.0


class Listener(Folder):
    """A run folder in memory."""

    def __init__(self) -> None:
        super().__init__(None, record=True)
        self.records: list[Record] = []
        self.metrics: list[Metric] = []

    def append(self, record: Record) -> None:
        super().append(record)
        self.records.append(record)

    def evaluated(self, t: float, version: int, worker: str, metrics: dict[str, float]) -> None:
        super().evaluated(t, version, worker, metrics)
        self.metrics.append(Metric(t, version, "eval", metrics=dict(metrics)))


def play(asked: Play, budget: Budget, own: Own = NOTHING) -> str:
    """Simulate; return JSON with the page's rows, waits, and the settings as an experiment file.

    `limited` says which budget ended the simulation, if any. Raises SettingsError.
    """
    before = experiment_of(asked.settings, own)
    rates: list[Schedule] = []

    def exchangeable(schedule: Any) -> Schedule:
        rates.append(Schedule(schedule))
        return rates[0]

    try:
        cluster = build(_ending(before), reschedule=exchangeable)
        if asked.at is not None:
            check_changes([key for key in asked.changes if asked.settings.get(key) != asked.changes[key]])
            prepare(cluster, before, experiment_of(asked.changed, own), asked.at, rates[0])
    except ValueError as error:
        raise SettingsError(str(error)) from error
    listener, waits = Listener(), WaitLog()
    cluster.folder = listener
    limited = _run(cluster, listener, waits, budget)
    return json.dumps(_document(before, cluster, listener, waits, limited), allow_nan=False)


def _ending(experiment: Experiment) -> Experiment:
    """Limit an endless experiment to 60 virtual seconds."""
    simulation = experiment.simulation
    if experiment.run.versions or simulation.seconds or simulation.batches:
        return experiment
    return experiment.model_copy(update={"simulation": simulation.model_copy(update={"seconds": 60.0})})


def _run(cluster: Cluster, listener: Listener, waits: WaitLog, budget: Budget) -> str:
    limited, began = "", time.process_time()

    def watch(cluster: Cluster) -> None:
        nonlocal limited
        waits.look(cluster.coordinator, cluster.now)
        if limited or cluster.coordinator.state.stopped is not None:
            return
        if len(listener.records) >= budget.entries:
            limited = f"the playground limits a run to {budget.entries} log entries"
        elif time.process_time() - began > budget.seconds:
            limited = f"the playground limits a run to {budget.seconds:g} s of processor time"
        if limited:
            cluster.stop(limited, success=True, cause="done")

    cluster.run(watch, every=1)
    waits.end(cluster.now)
    cluster.conclude()
    return limited


def _document(
    experiment: Experiment, cluster: Cluster, listener: Listener, waits: WaitLog, limited: str
) -> dict[str, Any]:
    recorder = Recorder()
    for entry in read_log(json.dumps(_line(record)) for record in listener.records):
        assert isinstance(entry, Line), entry.problem
        recorder.see(entry)
    for metric in listener.metrics:
        recorder.measured(metric)
    numbers = {name: number for number, name in enumerate(recorder.workers)}
    summary = listener.summary
    return {
        **recorder.take(),
        "waits": [
            [numbers[str(worker)], begin, end, event, [numbers[name] for name in names if name in numbers]]
            for worker, begin, end, event, names in _rows(waits)
        ],
        "ended": {
            "success": bool(summary.get("success")),
            "reason": str(summary.get("reason", "")),
            "version": int(summary.get("versions", 0)),
            "metrics": _finite(summary.get("metrics", {})),
            "folder": "",
        },
        "limited": limited,
        "experiment": experiment.to_toml(),
    }


def _rows(waits: WaitLog) -> list[tuple[str, float, float, str, list[str]]]:
    return [(w, b, e, event, names) for w, b, e, event, names in waits.waits]  # type: ignore[misc]


def _line(record: Record) -> dict[str, Any]:
    return {"i": record.index, "t": round(record.t, 6), **record.entry.to_json()}


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def played(text: str, budget: Budget, own: Own = NOTHING) -> str:
    """Call `play` for a request; return {"error": sentence} if it cannot be simulated."""
    from pslab.dashboard.playground.settings import read_play

    try:
        return play(read_play(text), budget, own)
    except (SettingsError, ExperimentError, JobError) as error:
        return json.dumps({"error": str(error)})
    except MemoryError:
        raise
    except Exception as error:  # A fault here must not end the page.
        return json.dumps({"error": f"the simulation failed: {type(error).__name__}: {error}"})
