"""Verbs for tests of replay and comparison: simulate a small numpy problem, edit what it left behind."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pslab.experiment import Experiment
from pslab.launch.simulated import run_simulated
from pslab.runs.folder import Run

Record = dict[str, Any]


def document(policy: str, knobs: Mapping[str, object] | None = None, **sections: Any) -> dict[str, Any]:
    """Four workers of random speed, two servers, a momentum optimizer (whose state makes the order matter)."""
    base: dict[str, Any] = {
        "run": {"name": "test", "seed": 3},
        "cluster": {"servers": 2, "workers": 4, "worker_timeout": 2.0},
        "policy": {"name": policy, **(knobs or {})},
        "optimizer": {"name": "momentum", "learning_rate": 0.05},
        "simulation": {"problem": "logistic", "compute": "exponential(1)"},
    }
    for name, section in sections.items():
        base[name] = base.get(name, {}) | section
    return base


def simulate(folder: Path, policy: str, knobs: Mapping[str, object] | None = None, **sections: Any) -> Run:
    experiment = Experiment.parse(document(policy, knobs, **sections), "test")
    finished = run_simulated(experiment, out=folder, quiet=True)
    assert finished.result.ok, finished.result
    return Run(finished.folder)


def edit_log(run: Run, change: Callable[[list[Record]], None]) -> None:
    """Rewrite decisions.jsonl as `change` leaves its entries."""
    path = run.path / "decisions.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
