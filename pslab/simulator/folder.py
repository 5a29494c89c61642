"""The run folder: the files that servers write, in virtual seconds."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pslab.simulator.store import ShardStore, SimulatedStore
from psserver.checkpoint.rewind import Mark
from psserver.coordinator import Coordinator
from psserver.coordinator.outputs import Record
from psserver.service.job.run_log import RunLog
from psserver.summary import summarise


class Folder:
    """A writer of decisions, metrics, summary and weights into `path`; without a path it writes nothing.

    `record`: write every decision and metric, otherwise only summary and weights.
    """

    def __init__(self, path: Path | None, *, record: bool = True, going_on: Mark | None = None) -> None:
        self.summary: dict[str, Any] = {}
        self._log = RunLog(path, going_on)
        if going_on is not None:
            self._log.open()
        self._path, self.record = path, record

    def sync(self) -> None:
        """Flush the log to disk, so that it survives a loss of power."""
        self._log.sync()

    def append(self, record: Record) -> None:
        """Append a record to the log. Only for folders that record."""
        self._log.append(record)

    def evaluated(self, t: float, version: int, worker: str, metrics: dict[str, float]) -> None:
        """Write the metrics of a version as a line of `metrics.jsonl`."""
        kept = _finite(metrics)
        line = {"t": round(t, 6), "kind": "eval", "version": version, "worker": worker, "metrics": kept}
        self._log.metric(line)

    def conclude(
        self,
        coordinator: Coordinator,
        store: SimulatedStore,
        measured: Mapping[str, float],
        first_grant: float | None,
    ) -> None:
        """Write weights and summary of a job that has stopped. `measured`: the evaluation of its last version."""
        sha256 = None
        if isinstance(store, ShardStore) and store.installed:
            sha256 = store.sha256()
            self._log.write_weights(store.weights(), store.tables())
        metrics: dict[str, Any] = _finite(measured)
        if "loss" not in metrics and self._log.last_loss is not None:
            metrics["training_loss"] = self._log.last_loss
        stopped = coordinator.state.stopped
        assert stopped is not None
        self.summary = summarise(
            coordinator,
            metrics=metrics,
            seconds=0.0 if first_grant is None else stopped.at - first_grant,
            sha256=sha256,
            tables=store.table_figures(),
        )
        self._log.write_summary(self.summary)
        self._log.close()
        if self._path is not None and not self.record:
            # An empty log would look like a damaged one.
            (self._path / "decisions.jsonl").unlink()
            (self._path / "metrics.jsonl").unlink()


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace numbers that JSON does not have by None."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
