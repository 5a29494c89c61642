"""One simulation for the page: what `ps-lab run --engine simulated` would do, within a budget, and no folder."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pslab.dashboard.playground.change import Schedule, check_changes, prepare
from pslab.dashboard.playground.settings import Play, SettingsError, experiment_of
from pslab.dashboard.recording import Recorder
from pslab.dashboard.waits import WaitLog
from pslab.runs.folder import Metric
from pslab.runs.log import Line, read_log
from pslab.simulator import Cluster, Folder, build
from psserver.coordinator.outputs import Record
from pswire.config.experiment import Experiment, ExperimentError


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one simulation: entries of its log, and seconds of the processor."""

    entries: int = 8000
    seconds: float = 4.0


class Listener(Folder):
    """Takes what a run folder would get."""

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


def play(asked: Play, budget: Budget) -> str:
    """What happens, as JSON: the page's recording, waits, the servers, and the settings as an experiment file.

    `limited` says where the budget ended it. Raises SettingsError.
    """
    before = experiment_of(asked.settings)
    rates: list[Schedule] = []

    def exchangeable(schedule: Any) -> Schedule:
        rates.append(Schedule(schedule))
        return rates[0]

    try:
        cluster = build(_ending(before), reschedule=exchangeable)
        if asked.at is not None:
            check_changes([key for key in asked.changes if asked.settings.get(key) != asked.changes[key]])
            prepare(cluster, before, experiment_of(asked.changed), asked.at, rates[0])
    except ValueError as error:
        raise SettingsError(str(error)) from error
    listener, waits = Listener(), WaitLog()
    cluster.folder = listener
    limited = _run(cluster, listener, waits, budget)
    return json.dumps(_told(before, cluster, listener, waits, limited), allow_nan=False)


def _ending(experiment: Experiment) -> Experiment:
    """Time only needs an end; what a page asks for has one."""
    simulation = experiment.simulation
    if experiment.run.versions or simulation.seconds or simulation.batches:
        return experiment
    return experiment.model_copy(update={"simulation": simulation.model_copy(update={"seconds": 60.0})})


def _run(cluster: Cluster, listener: Listener, waits: WaitLog, budget: Budget) -> str:
    limited, began = "", time.process_time()

    def watch(cluster: Cluster) -> None:
        nonlocal limited
        waits.look(cluster.coordinator, cluster.queue.now)
        if limited or cluster.coordinator.stopped is not None:
            return
        if len(listener.records) >= budget.entries:
            limited = f"the playground ends a run at {budget.entries} entries of its log"
        elif time.process_time() - began > budget.seconds:
            limited = f"the playground gives a run {budget.seconds:g} s of the processor"
        if limited:
            cluster.stop(limited, success=True, cause="done")

    cluster.run(watch, every=1)
    waits.end(cluster.queue.now)
    cluster.conclude()
    return limited


def _told(
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
        "servers": _servers(experiment, cluster),
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


def _servers(experiment: Experiment, cluster: Cluster) -> list[dict[str, Any]]:
    return [
        {"index": index, "address": "simulated", "state": "ready", "bytes": size, "executed": None}
        for index, size in enumerate(cluster.store.sizes_down)
    ]


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def played(text: str, budget: Budget) -> str:
    """`play` for a pool: {"error": sentence} where it cannot be played."""
    from pslab.dashboard.playground.settings import read_play

    try:
        return play(read_play(text), budget)
    except (SettingsError, ExperimentError) as error:
        return json.dumps({"error": str(error)})
    except MemoryError:
        raise
    except Exception as error:  # a fault here must not end the page
        return json.dumps({"error": f"the simulation failed: {type(error).__name__}: {error}"})
