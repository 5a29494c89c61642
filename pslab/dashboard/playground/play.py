"""One simulation for the page: like `ps-lab run --engine simulated`, but within a budget and without a folder."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pslab.dashboard.playground.settings import Play, PlaygroundError, experiment_of
from pslab.dashboard.recording import Recorder
from pslab.experiment import Experiment
from pslab.runs.log import Line, read_log
from pslab.runs.summary import Metric
from pslab.simulator import Cluster, Folder, build
from psserver.coordinator.outputs import Record
from pswire.config.experiment import ExperimentError
from psworker.job.errors import JobError


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one simulation: log entries, and seconds of processor time."""

    entries: int = 8000
    seconds: float = 4.0


class PlayListener(Folder):
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


def play(asked: Play, budget: Budget) -> str:
    """Simulate; return JSON with the page's rows, and the settings as an experiment file.

    `limited` says which budget ended the simulation, if any. Raises SettingsError.
    """
    experiment = experiment_of(asked.settings)
    try:
        cluster = build(_ending(experiment))
    except ValueError as error:
        raise PlaygroundError(str(error)) from error
    listener = PlayListener()
    cluster.folder = listener
    limited = _run(cluster, listener, budget)
    return json.dumps(_document(experiment, listener, limited), allow_nan=False)


def _ending(experiment: Experiment) -> Experiment:
    """Limit an endless experiment to 60 virtual seconds."""
    simulation = experiment.simulation
    if experiment.run.versions or simulation.seconds or simulation.batches:
        return experiment
    return experiment.model_copy(update={"simulation": simulation.model_copy(update={"seconds": 60.0})})


def _run(cluster: Cluster, listener: PlayListener, budget: Budget) -> str:
    limited, began = "", time.process_time()

    def watch(cluster: Cluster) -> None:
        nonlocal limited
        if limited or cluster.coordinator.state.stopped is not None:
            return
        if len(listener.records) >= budget.entries:
            limited = f"the playground limits a run to {budget.entries} log entries"
        elif time.process_time() - began > budget.seconds:
            limited = f"the playground limits a run to {budget.seconds:g} s of processor time"
        if limited:
            cluster.stop(limited, success=True, cause="done")

    cluster.run(watch, every=1)
    cluster.conclude()
    return limited


def _document(experiment: Experiment, listener: PlayListener, limited: str) -> dict[str, Any]:
    recorder = Recorder()
    for entry in read_log(json.dumps(_line(record)) for record in listener.records):
        assert isinstance(entry, Line), entry.problem
        recorder.see(entry)
    for metric in listener.metrics:
        recorder.measured(metric)
    summary = listener.summary
    return {
        **recorder.take(),
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


def _line(record: Record) -> dict[str, Any]:
    return {"i": record.index, "t": round(record.t, 6), **record.entry.to_json()}


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def played(text: str, budget: Budget) -> str:
    """Call `play` for a request; return {"error": sentence} if it cannot be simulated."""
    from pslab.dashboard.playground.settings import read_play

    try:
        return play(read_play(text), budget)
    except (PlaygroundError, ExperimentError, JobError) as error:
        return json.dumps({"error": str(error)})
    except MemoryError:
        raise
    except Exception as error:  # A fault here must not end the page.
        return json.dumps({"error": f"the simulation failed: {type(error).__name__}: {error}"})
