"""Simulated runs whose every file is frozen: one for each policy, optimizer and number of servers, and rough ones.

Their numbers do not depend on the processor. Times come from a virtual clock, and gradients are whole multiples of
1/64, so that their squares and sums are exact in any order. What an optimizer makes of them is float32, element by
element, which the tests of `tests/optimizers` and `tests/fast` hold to the bit.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pslab.experiment import Experiment
from pslab.simulator import Folder, build
from pslab.simulator.checkpoints import Saver
from pslab.simulator.problems.problem import Floats, Gradient, NumpyTrainer, Parameters
from pslab.verify.trace_format import replay
from psserver.coordinator import Record
from psserver.optimizers import OptimizerError
from psserver.optimizers import names as optimizer_names
from psserver.policies import names as policy_names
from psserver.service.job.run_log import DECISIONS, RunLog
from tests.oracles.frozen import Value, digest

TRACES = sorted((Path(__file__).parents[1] / "coordinator" / "traces").glob("*.txt"))

# Of each worker.
BATCHES = 75
SHAPES = {"kernel": (12, 8), "bias": (8,), "gamma": (3,)}
# Whole numbers of these are what gradients are made of.
GRAIN = np.float32(64)

# Knobs that reach other branches than the defaults do; every policy runs at its defaults, too.
KNOBS: Mapping[str, Mapping[str, object]] = {
    "sync, a backup": {"name": "sync", "backup": 1},
    "sync by samples": {"name": "sync", "weight": "samples"},
    "bounded, drop": {"name": "bounded", "aggregate": 2, "max_staleness": 1},
    "bounded, downweight": {"name": "bounded", "on_stale": "downweight", "aggregate": 2, "max_staleness": 0},
    "bounded, compensate": {"name": "bounded", "on_stale": "compensate", "max_staleness": 0},
    "bounded, block": {"name": "bounded", "on_stale": "block", "max_staleness": 1},
    "ssp, slack 1": {"name": "ssp", "slack": 1},
    "k-sync, late drop": {"name": "k-sync", "aggregate": 2, "late": "drop"},
    "rennala, 3": {"name": "rennala", "aggregate": 3},
    "softsync, 2": {"name": "softsync", "n": 2},
    "fedbuff, sum": {"name": "fedbuff", "norm": "sum"},
    "ringmaster, stops": {"name": "ringmaster", "threshold": 2, "stops": True},
    "krum, 2": {"name": "krum", "select": 2},
}
# Knobs that make an optimizer keep more, and rates that change.
COSINE = {"schedule": "cosine", "initial_learning_rate": 0.05, "decay_steps": 40}
OPTIMIZERS: Mapping[str, Mapping[str, object]] = {
    "sgd, cosine": {"name": "sgd", "learning_rate": COSINE},
    "delayed-nesterov, spread": {
        "name": "delayed-nesterov",
        "learning_rate": 0.05,
        "period": 3,
        "spread": 0.5,
    },
    "adam, amsgrad": {"name": "adam", "amsgrad": True},
    "adamw, no decay of the bias": {"name": "adamw", "exclude_from_weight_decay": ["bias"]},
    "rmsprop, centered": {"name": "rmsprop", "momentum": 0.5, "centered": True},
}
ROUGH = {
    "faults": {
        "loss": 0.1,
        "duplicate": 0.1,
        "crashes": [{"worker": 1, "at": 9.0, "restart": 3.0}, {"worker": 2, "at": 8.0, "silent": True}],
        "leaves": [{"worker": 0, "at": 30.0}],
        "disconnects": [{"worker": 3, "at": 7.0, "seconds": 30.0}],
        "joins": [{"worker": 4, "at": 12.0}],
    },
    "links": {"latency": 0.1, "bandwidth": 4096.0},
}
UNITS = {"problem": "none", "units": 25, "batches": 8}


@dataclass(frozen=True)
class Exact:
    """|x - t|^2 / 2 with another t for each batch, rounded to where sums are exact in float32."""

    def initial(self) -> Parameters:
        return {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}

    def batches(self, worker: int, workers: int, seed: int, epoch: int) -> Iterator[Parameters]:
        dice = np.random.default_rng([seed, worker, epoch])
        for _ in range(BATCHES):
            yield {
                name: dice.integers(-64, 65, shape).astype(np.float32) / GRAIN
                for name, shape in SHAPES.items()
            }

    def gradient(self, parameters: Parameters, batch: Parameters) -> Gradient:
        values = {name: _rounded(parameters[name] - batch[name]) for name in SHAPES}
        squares = sum(float(np.sum(np.square(each, dtype=np.float64))) for each in values.values())
        return Gradient(values, squares / 2, 1)

    def evaluate(self, parameters: Parameters) -> dict[str, float]:
        return {"size": sum(float(np.sum(np.abs(_rounded(each)))) for each in parameters.values())}


def _rounded(values: Floats) -> Floats:
    return np.rint(np.clip(values, -4, 4) * GRAIN) / GRAIN


def simulated(
    policy: Mapping[str, object],
    optimizer: Mapping[str, object] | None = None,
    servers: int = 2,
    **sections: Any,
) -> Value:
    """Digests of the files that a run of four workers leaves."""
    experiment = Experiment.parse(
        {
            "run": {"name": "oracle", "seed": 3, **sections.pop("run", {})},
            "cluster": {"servers": servers, "workers": 4, "worker_timeout": 2.0},
            "policy": dict(policy),
            "optimizer": dict(optimizer or {"name": "momentum", "learning_rate": 0.05}),
            "job": {"module": "oracle:exact", **sections.pop("job", {})},
            "simulation": {"problem": "job", "compute": "exponential(1)", **sections.pop("simulation", {})},
            **sections,
        }
    )
    trainer = NumpyTrainer(Exact())
    cluster = build(experiment, lambda _: lambda number: trainer)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster.folder = Folder(folder)
        if experiment.run.checkpoint_every:
            Saver(cluster, folder, experiment.run.keep)
        cluster.run()
        cluster.conclude()
        return {path.name: digest(path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()}


def policies() -> dict[str, Value]:
    """The files of a run under each policy: those that the simulator can repeat to the byte."""
    chosen = {name: {"name": name} for name in policy_names()} | dict(KNOBS)
    return {
        label: simulated(policy, servers=1 if policy["name"] == "krum" else 2)
        for label, policy in chosen.items()
    }


def rough() -> dict[str, Value]:
    """Crashes, losses, late joins, work units, checkpoints."""
    found = {}
    for name in ("sync", "async", "bounded", "ssp", "k-sync", "softsync", "fedbuff"):
        found[name] = simulated({"name": name}, **ROUGH)
        found[f"{name}, work units"] = simulated({"name": name}, job={"epochs": 3}, simulation=UNITS, **ROUGH)
    for name in ("sync", "async"):
        found[f"{name}, checkpoints"] = simulated({"name": name}, run={"checkpoint_every": "20 versions"})
    return found


def _logged(records: Iterable[Record]) -> Value:
    """The decision log of these records, as a run folder has it."""
    with tempfile.TemporaryDirectory() as name:
        log = RunLog(Path(name))
        for record in records:
            log.append(record)
        log.close()
        return digest((Path(name) / DECISIONS).read_bytes())


def traces() -> dict[str, Value]:
    """The decision logs behind the golden traces, which reach entries that no simulated run has."""
    return {path.stem: _logged(replay(path)[1].log) for path in TRACES}


def weights() -> dict[str, Value]:
    """The final weights under a barrier, by each optimizer, on one, two and three servers."""
    chosen = {name: {"name": name} for name in optimizer_names()} | dict(OPTIMIZERS)
    return {
        label: {f"{servers} servers": _weights(optimizer, servers) for servers in (1, 2, 3)}
        for label, optimizer in chosen.items()
    }


def _weights(optimizer: Mapping[str, object], servers: int) -> Value:
    try:
        return simulated({"name": "sync"}, optimizer, servers, run={"versions": 40})["weights.safetensors"]
    except OptimizerError:
        # It needs whole variables.
        return "refused"
