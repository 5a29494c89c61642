"""The run folder, as far as the servers write it: decisions, metrics, summary, weights."""

import json
import math
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from psserver import weights_file
from psserver.coordinator import entries
from psserver.coordinator.outputs import Record

DECISIONS = "decisions.jsonl"

# Made once. What is written holds no cycles.
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False)


class FolderError(OSError):
    """No run can be written there; the text says why."""


def make_folder(folder: Path) -> None:
    """The folder of a new run; what ps-lab has put there already is no run. Raises FolderError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / DECISIONS).exists():
            raise FolderError(
                f"{folder}: holds a run already ({DECISIONS}); name another folder, or remove that one"
            )
        (folder / DECISIONS).touch()
    except FolderError:
        raise
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written to: {error.strerror}") from error


class RunLog:
    """Appends to decisions.jsonl and metrics.jsonl in `folder`; without a folder it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._decisions: TextIO | None = None
        self._metrics: TextIO | None = None
        # Committed tickets that are neither applied nor dropped: (samples, loss).
        self._pending: dict[int, tuple[int, float]] = {}
        self._samples = 0
        self.last_loss: float | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._decisions = (folder / DECISIONS).open("w", encoding="utf-8")
            self._metrics = (folder / "metrics.jsonl").open("w", encoding="utf-8")

    def append(self, record: Record) -> None:
        if self._decisions is not None:
            _line(self._decisions, {"i": record.index, "t": round(record.t, 6), **record.entry.to_json()})
        match record.entry:
            case entries.Commit() as commit:
                self._pending[commit.ticket] = (commit.samples, commit.loss)
            case entries.Drop(_, ticket):
                self._pending.pop(ticket, None)
            case entries.Apply() as apply:
                self._applied(record.t, apply)

    def _applied(self, t: float, apply: entries.Apply) -> None:
        parts = [self._pending.pop(part.ticket) for part in apply.parts]
        self._samples += sum(samples for samples, _ in parts)
        losses = [loss for _, loss in parts if math.isfinite(loss)]
        self.last_loss = sum(losses) / len(losses) if losses else None
        self.metric(
            {
                "t": round(t, 6),
                "kind": "train",
                "version": apply.version,
                "samples": self._samples,
                "loss": self.last_loss,
            }
        )

    def metric(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            _line(self._metrics, line)

    def flush(self) -> None:
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        if self._folder is not None:
            text = json.dumps(summary, indent=2, allow_nan=False)
            (self._folder / "summary.json").write_text(text + "\n", encoding="utf-8")

    def write_weights(self, weights: dict[str, NDArray[np.float32]]) -> None:
        if self._folder is not None:
            weights_file.save(self._folder / "weights.safetensors", weights)

    def close(self) -> None:
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.close()


def _line(file: TextIO, value: dict[str, Any]) -> None:
    file.write(_ENCODER.encode(value) + "\n")
