"""The results of one run as JSON: every single sample, and where it was taken."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.kinds import TF
from benchmarks.measures.rounds import Row

FORMAT = 1
PACKAGES = ("paramserver", "numpy", "grpcio", "protobuf", "numba", "tensorflow")


@dataclass
class Results:
    """Filled as sections end. `sections`: rows by section; `optimizers`: what measures/kernels.py measured."""

    mode: str
    machine: Mapping[str, Any]
    sections: dict[str, list[Row]] = field(default_factory=dict)
    limits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    optimizers: Any = None
    budget: Any = None
    # What measures/connections.py measured.
    connections: Any = None
    seconds: float = 0.0

    def write(self, folder: Path) -> Path:
        """`results.json` in `folder`."""
        record = {
            "format": FORMAT,
            "mode": self.mode,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "limits": self.limits,
            "sections": {name: [_row(row) for row in rows] for name, rows in self.sections.items()},
            "optimizers": self.optimizers,
            "budget": self.budget,
            "connections": self.connections,
        }
        path = folder / "results.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return path


def _row(row: Row) -> dict[str, Any]:
    load = row.load
    return {
        "load": load.name,
        "bytes": load.nbytes,
        "variables": len(load.shapes),
        "model": load.model,
        "workers": load.workers,
        "servers": load.servers,
        "think_seconds": load.think,
        "targets": dict(load.targets),
        "limits": row.limits,
        "peers": {name: _peer(row, name) for name in row.bursts},
    }


def _peer(row: Row, name: str) -> dict[str, Any]:
    rate = row.rate(name)
    record: dict[str, Any] = {
        "steps_per_second": {"median": rate.median, "spread": rate.spread},
        "bursts": [asdict(burst) for burst in row.bursts[name]],
    }
    if TF in row.bursts:
        record["multiple_of_tf"] = rate.per(row.rate(TF)).median
    return record


def machine_facts() -> dict[str, Any]:
    """Processor, memory, versions, load and date; nothing that names the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
