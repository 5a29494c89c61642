"""One server's part of a checkpoint: copied between two orders, written while training continues.

Rows of tables are not copied as a whole: while they are written, updates save those that they change.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, FileFacts, Store, name_of, save_shard, settled
from psserver.checkpoint.rows import save_rows
from psserver.service.guard.memory import Memory
from psserver.service.pools import LARGE_PASS
from psserver.service.runtime import Runtime
from psserver.shard import Shard, ShardState, copied
from psserver.shard.tables import TABLE_KINDS, Tables
from psserver.shard.tables.saved import PIECE_BYTES, SavedRows
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]
# Number of remembered parts.
REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class Part:
    """The outcome of the part that log entry `entry` ordered: its files, or an error."""

    entry: int
    files: dict[str, FileFacts] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a server's state, made for log entry `entry`. `nbytes`: the memory taken for it. `rows`: those of
    `tables`, which are still to be copied."""

    entry: int
    job: str
    state: ShardState
    nbytes: int
    tables: Tables
    rows: SavedRows


class PassedOver(CheckpointError):
    """A newer checkpoint has taken the place of this one."""


def passed_over(entry: int, known: Iterable[int]) -> bool:
    """Return whether the part of that entry will never be written, given the entries with a known outcome.

    Outcomes come in log order, and of waiting parts the newest replaces the others.
    """
    entries = set(known)
    return entry not in entries and max(entries, default=entry) > entry


class PartSaver:
    """Saves this server's parts of checkpoints. The loop's thread owns it.

    `parts`: the newest outcomes by entry; they come in the order of the log, errors too. One part is written at a time;
    one more waits, and a newer one replaces it. `store`: None if this server has no folder. `changed` is called with
    every new outcome, `copied` when the shard may be written to again. One thread copies while another one writes a
    part, rows of tables included. A copy is accounted for in `memory` until it is written or replaced; without room
    there is no part. The arrays of a large one are kept for the next, as far as there is room: getting memory from the
    system takes longer than copying into it.
    """

    def __init__(
        self,
        runtime: Runtime,
        server: int,
        memory: Memory,
        changed: Callable[[], object],
        copied: Callable[[], object],
    ) -> None:
        self.store: Store | None = None
        self.parts: dict[int, Part] = {}
        self._runtime, self._server, self._changed, self._copied = runtime, server, changed, copied
        self._memory = memory
        self._writer = runtime.pool(1, "checkpoint")
        # One after the other, so that parts are written in the order of the log.
        self._copier = runtime.pool(1, "checkpoint-copy")
        self._busy = self._closed = False
        self._copying = 0
        self._next: Copy | None = None
        # Outcomes that wait for those of earlier entries.
        self._early: list[Part] = []
        # Of a copy that is written, for the next one.
        self._spare: list[Floats] = []

    @property
    def newest(self) -> int:
        """The newest entry whose outcome is known; -1 before the first."""
        return max(self.parts, default=-1)

    @property
    def working(self) -> bool:
        """Whether a part is being copied or written."""
        return self._busy or self._copying > 0

    def save(self, entry: int, job: str, shard: Shard) -> bool:
        """Save the shard, which has executed the entries up to this one. A small shard is copied now, a large one
        beside the loop.

        Returns whether a copy is under way: then nothing may write to the shard until `copied` is called.
        """
        if self.store is None:
            missing = (
                "has no folder for checkpoints: give every server the same --out, on a disk that all share"
            )
            self.note(Part(entry, error=f"server {self._server} {missing}"))
            return False
        # Drop the waiting part before the copy: the newest is enough.
        self._wait(None)
        state = settled(shard.views())
        large = state.nbytes > LARGE_PASS
        # Rows are copied in pieces, of which a few are held at once.
        nbytes = state.nbytes + min(shard.tables.saved_bytes, 4 * PIECE_BYTES)
        spare = self._take_spare()
        refusal = self._memory.take(nbytes)
        if refusal is not None:
            self.note(
                Part(entry, error=f"server {self._server} has no room for a copy of what it holds: {refusal}")
            )
            return False
        copy = Copy(entry, job, state, nbytes, shard.tables, shard.tables.snapshot())
        if not large and not self._copying:
            self._wait(replace(copy, state=copied(copy.state)))
            self._begin()
            return False
        self._copy_beside(copy, spare)
        return True

    def _copy_beside(self, copy: Copy, spare: list[Floats]) -> None:
        """Copy on another thread what nothing may write to meanwhile."""
        began, found = self._runtime.now(), list[ShardState]()
        self._copying += 1

        def copy_arrays() -> None:
            found.append(copied(copy.state, spare))

        def ended(error: BaseException | None) -> None:
            self._copying -= 1
            if error is None:
                state = found.pop()
                fields = event("part_copied", bytes=state.nbytes, seconds=self._runtime.now() - began)
                log.debug("%d bytes to be saved were copied", state.nbytes, extra=fields)
                self._wait(replace(copy, state=state))
                self._begin()
            else:
                self._end(copy)
                self.note(Part(copy.entry, error=f"server {self._server} {_reason(error)}"))
            self._copied()

        self._copier.start(copy_arrays, ended)

    def _begin(self) -> None:
        if self._busy or self._closed or self._next is None or self.store is None:
            return
        copy, self._next, self._busy = self._next, None, True
        store, written = self.store, list[Part]()

        def ended(error: BaseException | None) -> None:
            self._end(copy)
            if copy.state.nbytes > LARGE_PASS and not self._closed:
                self._keep_spare(copy.state)
            self._ended(
                written.pop()
                if error is None
                else Part(copy.entry, error=f"server {self._server} {_reason(error)}")
            )

        self._writer.start(lambda: written.append(self._write(store, copy)), ended)

    def _keep_spare(self, state: ShardState) -> None:
        """Keep the arrays of fixed sizes for the next copy, if memory has room."""
        kept = [values for name, values in state.arrays.items() if name.split("/")[0] not in TABLE_KINDS]
        if not self._spare and self._memory.take(sum(values.nbytes for values in kept)) is None:
            self._spare = kept

    def _take_spare(self) -> list[Floats]:
        """Return what is kept; the caller accounts for it."""
        spare, self._spare = self._spare, []
        self._memory.give(sum(values.nbytes for values in spare))
        return spare

    def note(self, part: Part) -> None:
        """Take the outcome of a part that is not written here, or not at all."""
        self._early.append(part)
        self._tell_early()

    def _write(self, store: Store, copy: Copy) -> Part:
        """Write a copy with its rows."""
        entry, rows = copy.entry, dict[str, FileFacts]()
        name = name_of(entry, copy.job)
        try:
            if copy.tables:
                rows = save_rows(store, name, self._server, copy.rows.pieces())
            return Part(entry, {**save_shard(store, name, copy.state), **rows})
        except CheckpointError as error:
            reason = f"server {self._server}: {error}"
        except Exception as error:
            fields = event("checkpoint_failed", version=copy.state.facts.version)
            log.exception("this server's part of a checkpoint was not written", extra=fields)
            reason = f"server {self._server} {_reason(error)}"
        store.discard(name, self._server)
        return Part(entry, error=reason)

    def _ended(self, part: Part) -> None:
        self._busy = False
        self._tell(part)
        self._begin()
        self._tell_early()

    def _tell_early(self) -> None:
        if not self.working:
            early, self._early = self._early, []
            for part in early:
                self._tell(part)

    def _wait(self, part: Copy | None) -> None:
        """Make `part` the next to be written, in place of the waiting one."""
        if self._next is not None:
            self._end(self._next)
        self._next = part

    def _end(self, copy: Copy) -> None:
        """Free what is held for a copy, which is written, or will not be."""
        copy.tables.drop(copy.rows)
        self._memory.give(copy.nbytes)

    def _tell(self, part: Part) -> None:
        self.parts[part.entry] = part
        while len(self.parts) > REMEMBERED:
            del self.parts[min(self.parts)]
        self._changed()

    def close(self) -> None:
        """Stop, after the part that is being written."""
        self._closed = True
        self._take_spare()
        self._copier.close()
        self._writer.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "has no memory for a copy of what it holds"
    return f"failed: {type(error).__name__}: {error}"
