"""The files of the run folder (decisions, metrics, summary, weights), and when they are flushed."""

import json
import os
import tempfile
from asyncio import Future
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from psserver import weights_file
from psserver.checkpoint import UnwritableError, files
from psserver.checkpoint.disk import RealDisk, RealFile
from psserver.checkpoint.rewind import Mark
from psserver.coordinator.outputs import Record
from psserver.decisions import entries
from psserver.decisions.counting import Pending
from psserver.decisions.records import line_of, value_text
from psserver.service.job.log_file import LOGS, Check, JsonLines, LogError, always
from psserver.service.net.loop import settle
from pswire.model.plan import Plan
from pswire.model.variables import WholeTables
from pswire.own_files import write_file
from pswire.security.credentials import Credentials
from pswire.security.proof import FILE

if TYPE_CHECKING:
    from psserver.metrics.counts import Counts
    from psserver.service.runtime import Runtime

DECISIONS, METRICS = "decisions.jsonl", "metrics.jsonl"
SUMMARY, WEIGHTS = "summary.json", "weights.safetensors"
# Bytes of a weights file beside its arrays: at most this much header per variable, beside its name, and in all.
HEADER_EACH, HEADER = 256, 4096
# The file with server 0's address and the job's name, for commands that are given the run folder.
ADDRESS = "address"


class FolderError(OSError):
    """A folder that no run can be written to; the text says why."""


def make_folder(folder: Path, disk: RealDisk) -> None:
    """Make the folder of a new run; it may hold what ps-lab has put there. Raises FolderError."""
    try:
        disk.make_folder(folder)
        os.close(os.open(folder / DECISIONS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        disk.sync_folder(folder)
    except FileExistsError as error:
        raise FolderError(
            f"{folder}: holds a run already ({DECISIONS}); name another folder, or remove that one"
        ) from error
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written to: {error.strerror}") from error


class RunLog:
    """Appends to decisions.jsonl and metrics.jsonl in `folder`; without a folder it writes nothing.

    Raises LogError if a line cannot be written: then what the line says must not take effect. `going_on`: the
    checkpoint after which the files continue, once `open` is called. `check`: called before anything is written.
    `rescue`: where weights are written if the folder does not take them. The loop's thread owns it.
    """

    def __init__(
        self,
        folder: Path | None,
        going_on: Mark | None = None,
        check: Check = always,
        rescue: Path | None = None,
        disk: RealDisk = LOGS,
    ) -> None:
        self._folder, self._check, self._rescue, self._disk = folder, check, rescue, disk
        # An empty file for which the disk reserves room for the final weights.
        self._room: RealFile | None = None
        # Bytes of it: for variables, and for rows.
        self._variables = self._rows = 0
        # Where the job's secret was written.
        self._secret: Path | None = None
        self._decisions: JsonLines | None = None
        self._metrics: JsonLines | None = None
        self._closed = False
        # What it has taken, where metrics tell of it.
        self.counts: Counts | None = None
        self._pending = Pending() if going_on is None else going_on.pending.copy()
        if going_on is None:
            self.open(more=False)

    @property
    def last_loss(self) -> float | None:
        """Mean loss of the newest update."""
        return self._pending.loss

    @property
    def pending(self) -> Pending:
        """A copy of what is known of contributions without a fate."""
        return self._pending.copy()

    def open(self, *, more: bool = True) -> None:
        """Open the files to append to, or new ones without `more`. Raises LogError."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._decisions = JsonLines(
                self._folder / DECISIONS, going_on=more, check=self._check, disk=self._disk
            )
            self._metrics = JsonLines(
                self._folder / METRICS, going_on=more, check=self._check, disk=self._disk
            )

    def append(self, record: Record) -> None:
        """Take an entry, to be written at the end of this turn of the loop."""
        if self._decisions is not None:
            self._decisions.take(lambda: line_of(record.index, record.t, record.entry))
        if self.counts is not None:
            self.counts.see(record)
        entry = record.entry
        # By type, because entries are abstract classes, whose isinstance takes ten times as long.
        if type(entry) is entries.Commit:
            self._pending.commit(entry.ticket, entry.samples, entry.loss)
        elif type(entry) is entries.Drop:
            self._pending.drop(entry.ticket)
        elif type(entry) is entries.Apply:
            self._applied(record.t, entry)

    def _applied(self, t: float, apply: entries.Apply) -> None:
        self._pending.apply([part.ticket for part in apply.parts])
        if self._metrics is not None:
            samples, loss = self._pending.samples, self._pending.loss
            self._metrics.take(
                lambda: (
                    f'{{"t":{value_text(round(t, 6))},"kind":"train","version":{apply.version},'
                    f'"samples":{samples},"loss":{value_text(loss)}}}'
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
        """Make every line survive a loss of power, as a checkpoint needs. Raises LogError."""
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.sync()

    def sync_flushed(self) -> None:
        """Make every line that was flushed survive a loss of power; any thread may call it. Raises LogError, also when
        the log is closed."""
        if self._closed:
            raise LogError(f"{self._folder}: the log is closed, so nothing more is known to be safe")
        for file in (self._decisions, self._metrics):
            if file is not None:
                file.sync_flushed()

    def write_address(self, address: str, job: str, credentials: Credentials) -> None:
        """`address`: of server 0; with replicas of all servers, the one that leads first. `job`: which job answers
        there, because the log does not say so before the job begins. Beside it goes the job's secret, where commands
        need that. Raises LogError."""
        if credentials.job_secret and not credentials.encrypted and self._folder is not None:
            self._secret = self._folder / FILE
            try:
                write_file(self._secret, credentials.job_secret.reveal(), mode=0o600)
            except OSError as error:
                raise LogError(f"{self._secret} cannot be written: {error.strerror or error}") from error
        self._replace(ADDRESS, f"{address}\n{job}\n")

    def _forget_secret(self) -> None:
        if self._secret is not None:
            with suppress(OSError, LogError):
                # Another server may lead by now, whose file it is then.
                self._check()
                self._secret.unlink()
            self._secret = None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary whole or not at all. Raises LogError."""
        if self._folder is not None:
            self._check()
            self._replace(SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def _replace(self, name: str, text: str) -> None:
        """Write a file of the folder whole or not at all."""
        if self._folder is not None:
            try:
                files.write(self._disk, self._folder / name, [memoryview(text.encode())])
            except UnwritableError as error:
                raise LogError(str(error)) from error

    def reserve_weights(self, plan: Plan) -> None:
        """Reserve room on the disk for the final weights of that model. Raises LogError."""
        if self._folder is None or self._room is not None:
            return
        names = sum(HEADER_EACH + 6 * len(variable.name) for variable in plan.variables)
        nbytes = sum(shard.nbytes for shard in plan.shards) + names + HEADER
        path = files.aside_of(self._folder / WEIGHTS)
        try:
            self._room = self._disk.create(path)
            self._room.reserve(nbytes)
            self._variables = nbytes
        except OSError as error:
            self._give_room()
            raise LogError(f"{path}: no room for {nbytes} bytes: {error.strerror or error}") from error

    def reserve_rows(self, nbytes: int) -> None:
        """Reserve room for `nbytes` of tables beside the variables, and a quarter more. Raises LogError, once."""
        if self._room is None or nbytes <= self._rows:
            return
        self._rows = nbytes + nbytes // 4 + HEADER
        try:
            self._room.reserve(self._variables + self._rows)
        except OSError as error:
            # What is reserved stays; the end may yet find room.
            self._rows = 1 << 63
            path = files.aside_of((self._folder or Path()) / WEIGHTS)
            raise LogError(
                f"{path}: no room for {nbytes} bytes of tables: {error.strerror or error}"
            ) from error

    def _give_room(self) -> None:
        if self._room is not None and self._folder is not None:
            self._room.close()
            self._room = None
            with suppress(OSError):
                files.aside_of(self._folder / WEIGHTS).unlink()

    def write_weights(
        self, weights: dict[str, NDArray[np.float32]], tables: WholeTables | None = None
    ) -> None:
        """Write the weights whole or not at all. Raises LogError, which says where they were rescued to."""
        if self._folder is None:
            return
        self._check()
        path, (room, self._room) = self._folder / WEIGHTS, (self._room, None)
        try:
            files.write(self._disk, path, weights_file.pieces(weights, tables), onto=room)
        except UnwritableError as error:
            raise LogError(f"{error}; {self._rescued(weights, tables)}") from error

    def _rescued(self, weights: dict[str, NDArray[np.float32]], tables: WholeTables | None) -> str:
        """Write the weights to a new file elsewhere; return a sentence that names it."""
        folder = self._rescue or Path(tempfile.gettempdir())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(".safetensors", "weights-", folder)
            with os.fdopen(number, "wb") as file:
                for piece in weights_file.pieces(weights, tables):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return f"the weights are lost: {folder} takes none either: {error.strerror or error}"
        return f"the weights are in {name}"

    def close(self) -> None:
        """Close the files. Raises LogError if queued lines cannot be written."""
        self._forget_secret()
        files = [file for file in (self._decisions, self._metrics) if file is not None]
        self._decisions = self._metrics = None
        self._closed = True
        self._give_room()
        with ExitStack() as closing:
            for file in files:
                closing.callback(file.close)


class Flushing:
    """Writes a run log once for each turn of the loop in which it took lines, before any worker is answered.

    `disk`: also sync it to the disk then. `failed(error)` is called if writing fails. The loop's thread owns it.
    """

    def __init__(
        self,
        run_log: RunLog,
        disk: bool,
        runtime: "Runtime",
        failed: Callable[[LogError], None],
    ) -> None:
        self._log, self._disk, self._runtime, self._failed = run_log, disk, runtime, failed
        # Whether a flush is due at the end of this turn; and who waits for it.
        self._due = False
        self._waiting: list[Future[None]] = []
        self._whole = True

    def taken(self) -> None:
        """Schedule a flush: the log has taken lines. Call it before any answer leaves."""
        if not self._due:
            self._due = True
            self._runtime.loop.at_end_of_turn(self._flush)

    def _flush(self) -> None:
        self._due = False
        try:
            if self._disk:
                self._log.sync()
            self._log.flush()
        except LogError as error:
            self._whole = False
            self._failed(error)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            settle(future)

    async def written(self) -> bool:
        """Wait until answers may leave that rest on what the log has taken. Returns False if it could not be written:
        none may leave."""
        if self._due:
            future = self._runtime.loop.create_future()
            self._waiting.append(future)
            await future
        return self._whole
