"""Whole checkpoints: server 0 waits for the parts of all servers and completes the checkpoint."""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psserver.checkpoint import (
    CheckpointError,
    FileFacts,
    Manifest,
    Store,
    describe,
    files,
    name_of,
    save_coordinator,
)
from psserver.coordinator import Record
from psserver.records import StateError
from psserver.service.job.agreement import Agreement
from psserver.service.job.follower import Follower
from psserver.service.job.log_file import LogError
from psserver.service.job.run_log import RunLog
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import SAVED
from psserver.service.store.shard_part import PassedOver, passed_over
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.patience import transfer

log = logging.getLogger("ps-server")

# Seconds that the slowest disk may take beyond the time for the bytes.
PATIENCE = 60.0


def limit(plan: Plan, worker_timeout: float, rows: int = 0) -> float:
    """Return the seconds that the slowest server may take for its part, by its disk and link.

    `rows`: bytes of the rows of tables on a server. A wait for a server that may be busy with a checkpoint uses the
    same limit, without rows: they are copied while updates go on.
    """
    nbytes = max(shard.nbytes for shard in plan.shards) + rows
    return PATIENCE + math.ceil(4 * transfer(nbytes, worker_timeout))


@dataclass(frozen=True, slots=True)
class _Due:
    """A checkpoint that the log has ordered. `state`: the coordinator's, as it is saved."""

    version: int
    record: Record
    state: Mapping[str, Any]
    plan: Plan


class Checkpoints:
    """Checkpoints of a job, one at a time; of those due meanwhile, the newest follows. The loop's thread owns it.

    A failed checkpoint is logged, and training continues.
    """

    def __init__(
        self,
        agreement: Agreement,
        folder: Path,
        store: Store,
        keep: int,
        host: ShardHost,
        run_log: RunLog,
        followers: list[Follower],
        names: set[str] | None,
        unsaved: Callable[[int, str], object],
    ) -> None:
        """`names`: checkpoints that are in the log already. Any other in the store was rolled back, or belongs to
        another run. None: all are in the log, those too that another server completed. `unsaved`: called with the
        version of each checkpoint that fails, and the reason."""
        self._agreement, self._names = agreement, names
        self._folder, self._store, self._keep = folder, store, keep
        self._host, self._run_log, self._followers = host, run_log, followers
        self._unsaved = unsaved
        self._writing: asyncio.Task[None] | None = None
        self._next: _Due | None = None

    def order(
        self,
        record: Record,
        state: Callable[[], Mapping[str, Any]],
        plan: Plan,
    ) -> None:
        """Begin a checkpoint that the log has ordered; the servers save their state after that entry."""
        version = int(record.entry.to_json()["version"])
        try:
            due = _Due(version, record, state(), plan)
        except StateError as error:
            self._failed(version, error)
            return
        if self._next is not None:
            self._skipped(self._next)
        self._next = due
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())

    def succeed(self, version: int) -> None:
        """Take the place of a server that led, and ordered a checkpoint of that version."""
        self._writing = asyncio.create_task(self._write_all(version))

    async def _write_all(self, ordered: int = 0) -> None:
        """Write what is due. `ordered`: by a server that led before, and may not have completed it."""
        if ordered:
            newest = await self._host.runtime.beside(self._store.newest)
            if newest is None or newest.version < ordered:
                self._failed(ordered, "the server that led was lost before it was complete")
        while self._next is not None:
            due, self._next = self._next, None
            await self._write(due)

    async def _write(self, due: "_Due") -> None:
        record, version = due.record, due.version
        terms = self._agreement.terms
        name, began = name_of(record.index, terms.job), self._host.runtime.now()
        # Servers have as many rows each, but for a few.
        seconds = limit(due.plan, terms.worker_timeout, self._host.rows_nbytes)
        try:
            files = await self._host.runtime.beside(partial(save_coordinator, self._store, name, due.state))
            files |= await self._own(record.index, seconds)
            for follower in self._followers:
                files |= await follower.saved(record.index, seconds)
            # The log up to the checkpoint must be as safe as the checkpoint.
            self._run_log.flush()
            await self._host.runtime.beside(self._run_log.sync_flushed)
            about = describe(record, due.state, terms, self._agreement.policy, due.plan, files)
            await self._host.runtime.beside(partial(self._complete, about, name))
        except PassedOver:
            self._skipped(due)
            return
        except (CheckpointError, StateError, LogError) as error:
            self._failed(version, error)
            await self._host.runtime.beside(partial(self._store.discard, name))
            await self._host.runtime.beside(self._make_room)
            return
        took = self._host.runtime.now() - began
        fields = event("checkpoint_written", version=version, bytes=about.nbytes, seconds=took)
        log.info("version %d is saved: %d bytes in %.1f s", version, about.nbytes, took, extra=fields)

    def _complete(self, about: Manifest, name: str) -> None:
        self._store.complete(about)
        if self._names is not None:
            self._names.add(name)
        with contextlib.suppress(CheckpointError):
            # Used only if the checkpoint is lost.
            files.write(
                self._host.runtime.disk(0o644), self._folder / SAVED, [memoryview(f"{name}\n".encode())]
            )
        self._store.prune(self._keep, frozenset({name}), self._is_void)
        self._make_room()

    def _is_void(self, name: str) -> bool:
        return self._names is not None and name not in self._names

    def _make_room(self) -> None:
        """Remove older checkpoints if the disk has no room for another one like the newest."""
        count = len(self._store.make_room(self._is_void))
        if count:
            fields = event("checkpoints_given_up", count=count)
            log.warning(
                "the disk is nearly full: %d older checkpoints made room for the next", count, extra=fields
            )

    async def _own(self, entry: int, limit: float) -> dict[str, FileFacts]:
        parts = self._host.saver.parts

        def passed() -> bool:
            return passed_over(entry, parts)

        await self._host.state.changes.wait_for(lambda: entry in parts or passed(), limit)
        part = parts.get(entry)
        if part is None and passed():
            raise PassedOver
        if part is None:
            raise CheckpointError(f"server 0 did not write its part within {limit:.0f} s")
        if part.error:
            raise CheckpointError(part.error)
        return part.files

    def _skipped(self, due: "_Due") -> None:
        fields = event("checkpoint_skipped", version=due.version)
        log.warning(
            "version %d is not saved: newer ones are due before it could be", due.version, extra=fields
        )

    def _failed(self, version: int, why: object) -> None:
        fields = event("checkpoint_failed", version=version)
        log.error("version %d is NOT saved: %s", version, why, extra=fields)
        self._unsaved(version, str(why))

    async def finish(self) -> None:
        """Wait for the checkpoint that is being written. Every wait in it has a limit."""
        if self._writing is not None:
            await self._writing
