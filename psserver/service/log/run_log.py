"""The run folder, as far as the servers write it: decisions, metrics, summary, weights."""

import json
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver import weights_file
from psserver.checkpoint.disk import RealDisk
from psserver.checkpoint.rewind import Mark
from psserver.coordinator import entries
from psserver.coordinator.outputs import Record
from psserver.service.log.json_lines import Check, JsonLines, LogError, always
from psserver.service.log.texts import entry_line, value_text

DECISIONS, METRICS = "decisions.jsonl", "metrics.jsonl"
# Of server 0, for those who ask for the status of a run by its folder.
ADDRESS = "address"


class FolderError(OSError):
    """No run can be written there; the text says why."""


def make_folder(folder: Path) -> None:
    """The folder of a new run; what ps-lab has put there already is no run. Raises FolderError."""
    try:
        disk = RealDisk()
        disk.make_folder(folder)
        if (folder / DECISIONS).exists():
            raise FolderError(
                f"{folder}: holds a run already ({DECISIONS}); name another folder, or remove that one"
            )
        (folder / DECISIONS).touch()
        disk.sync_folder(folder)
    except FolderError:
        raise
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written to: {error.strerror}") from error


class RunLog:
    """Appends to decisions.jsonl and metrics.jsonl in `folder`; without a folder it writes nothing.

    The loop's thread owns it. Raises LogError where a line cannot be written: what
    that line says must not take effect then. `going_on`: the checkpoint behind which the files go on, once `open` says
    that they end there. `check`: called before anything is written.
    """

    def __init__(self, folder: Path | None, going_on: Mark | None = None, check: Check = always) -> None:
        self._folder, self._check = folder, check
        self._decisions: JsonLines | None = None
        self._metrics: JsonLines | None = None
        # Committed tickets that are neither applied nor dropped: (samples, loss).
        self._pending: dict[int, tuple[int, float]] = {}
        self._samples = 0
        self.last_loss: float | None = None
        if going_on is not None:
            self._pending = dict(going_on.pending)
            self._samples, self.last_loss = going_on.samples, going_on.loss
        else:
            self.open(more=False)

    def open(self, *, more: bool = True) -> None:
        """Append to the files, or to new ones without `more`. Raises LogError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._decisions = JsonLines(self._folder / DECISIONS, going_on=more, check=self._check)
            self._metrics = JsonLines(self._folder / METRICS, going_on=more, check=self._check)

    def append(self, record: Record) -> None:
        if self._decisions is not None:
            self._decisions.take(lambda: entry_line(record.index, record.t, record.entry))
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
        if self._metrics is not None:
            self._metrics.take(
                lambda: (
                    f'{{"t":{value_text(round(t, 6))},"kind":"train","version":{apply.version},'
                    f'"samples":{self._samples},"loss":{value_text(self.last_loss)}}}'
                )
            )

    def metric(self, line: dict[str, Any]) -> None:
        if self._metrics is not None:
            self._metrics.append(line)

    def flush(self) -> None:
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.flush()

    def sync(self) -> None:
        """Every line survives a loss of power, as a checkpoint behind it needs. Raises LogError."""
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.sync()

    def write_address(self, address: str) -> None:
        """Raises LogError."""
        if self._folder is not None:
            _replace(self._folder / ADDRESS, lambda path: path.write_text(address + "\n", encoding="utf-8"))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Raises LogError; a summary that was there before is whole then."""
        if self._folder is not None:
            self._check()
            text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
            _replace(self._folder / "summary.json", lambda path: path.write_text(text, encoding="utf-8"))

    def write_weights(self, weights: dict[str, NDArray[np.float32]]) -> None:
        """Raises LogError; weights that were there before are whole then."""
        if self._folder is not None:
            self._check()
            _replace(self._folder / "weights.safetensors", lambda path: weights_file.save(path, weights))

    def close(self) -> None:
        """Raises LogError when lines that were taken before cannot be written."""
        files = [file for file in (self._decisions, self._metrics) if file is not None]
        self._decisions = self._metrics = None
        with ExitStack() as closing:
            for file in files:
                closing.callback(file.close)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all: aside first, on the disk, then in its place."""
    aside = path.with_name(path.name + ".part")
    try:
        try:
            write(aside)
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error.strerror or error}") from error
