"""One server's part of a checkpoint: copied between two orders, written while training continues.

Rows of tables are not copied as a whole: while they are written, updates save those that they change.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, FileFacts, Store, name_of, save_shard, settled
from psserver.checkpoint.increments import RowFiles, save_rows, usable
from psserver.service.guard.memory import Memory
from psserver.service.net.loop import LARGE_PASS, Owner
from psserver.shard import Shard, ShardState, copied
from psserver.shard.tables import TABLE_KINDS, Tables
from psserver.shard.tables.saved import PIECE_BYTES, SavedRows
from pswire import running
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]
# Elements that are touched at once; other threads run in between.
PIECE = 1 << 22
# One element in this many is touched: a page is no smaller.
STEP = 1024


@dataclass(frozen=True, slots=True)
class PrefaultedArrays:
    """Arrays whose pages a thread touches in advance, until `stop`. Call `wait` before using them.

    Getting memory from the system takes longer than copying into it.
    """

    arrays: list[Floats]
    _stop: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def before(cls, arrays: list[Floats]) -> "PrefaultedArrays":
        """Wrap arrays whose memory is allocated already."""
        made = cls(arrays)
        made._ended.set()
        return made

    def run(self) -> None:
        """Touch all pages, on another thread. Raises nothing: the system gives the memory, or ends the process."""
        try:
            for piece in self.pieces():
                if self._stop.is_set():
                    return
                piece[::STEP] = 0
        finally:
            self._ended.set()

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.arrays)

    def pieces(self) -> Iterator[Floats]:
        """Yield all arrays in small pieces."""
        for values in self.arrays:
            for start in range(0, values.size, PIECE):
                yield values[start : start + PIECE]

    def stop(self) -> None:
        """Stop touching pages: the arrays are needed now, or not at all."""
        self._stop.set()

    def wait(self) -> list[Floats]:
        """Return the arrays once no thread writes to them: soon after `stop`. From any thread."""
        self._ended.wait()
        return self.arrays


class SpareArrays:
    """Unused float32 arrays, kept for the next copy and accounted for in `memory`. The loop's thread owns it."""

    def __init__(self, memory: Memory, threads: Executor) -> None:
        self._memory, self._threads = memory, threads
        self._held: PrefaultedArrays | None = None

    def prepare(self, sizes: Collection[int]) -> Future[None] | None:
        """Prepare arrays of those sizes on another thread, if memory has room. Returns None if there are some, or
        no room."""
        if self._held is not None or self._memory.take(4 * sum(sizes)) is not None:
            return None
        try:
            self._held = PrefaultedArrays([np.empty(size, np.float32) for size in sizes])
        except MemoryError:
            self._memory.give(4 * sum(sizes))
            return None
        return self._threads.submit(self._held.run)

    def keep(self, arrays: Iterable[Floats]) -> None:
        """Keep the arrays for the next copy, if memory has room."""
        kept = list(arrays)
        if self._held is None and self._memory.take(sum(a.nbytes for a in kept)) is None:
            self._held = PrefaultedArrays.before(kept)

    def take(self) -> PrefaultedArrays | None:
        """Return the arrays, if any. The caller accounts for them."""
        held, self._held = self._held, None
        if held is not None:
            held.stop()
            self._memory.give(held.nbytes)
        return held


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
    `tables`, which are still to be copied; `few`: so few that an increment saves nothing."""

    entry: int
    job: str
    state: ShardState
    nbytes: int
    tables: Tables
    rows: SavedRows
    few: bool


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
    there is no part. If `periodic`, the job takes checkpoints while it trains: memory for a copy is prepared and kept,
    as far as there is room.
    """

    def __init__(
        self,
        owner: Owner,
        server: int,
        memory: Memory,
        changed: Callable[[], object],
        copied: Callable[[], object],
    ) -> None:
        self.store: Store | None = None
        self.parts: dict[int, Part] = {}
        self.periodic = False
        self._owner, self._server, self._changed, self._copied = owner, server, changed, copied
        self._memory = memory
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="checkpoint")
        # One after the other, so that parts are written in the order of the log.
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-copy")
        self._busy = self._closed = False
        self._copying = 0
        self._next: Copy | None = None
        # Outcomes that wait for those of earlier entries.
        self._early: list[Part] = []
        # The tables, and the files that have their rows as last written: tables remember what went since.
        self._tables: Tables | None = None
        self._rows: RowFiles | None = None
        self._spare = SpareArrays(memory, self._pool)

    def prepare(self, shard: Shard, unused: ShardState | None = None) -> None:
        """Prepare memory for a copy of a large shard, so that training does not wait for it.

        `unused`: a state with arrays of the same sizes that are no longer needed.
        """
        state = settled(shard.views())
        if not self.periodic or self.store is None or self._closed or state.nbytes <= LARGE_PASS:
            return
        if unused is not None:
            self._spare.keep(_dense(unused))
        else:
            self._spare.prepare([values.size for values in _dense(state)])

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
        if shard.tables is not self._tables:
            self._tables, self._rows = shard.tables, None
        state = settled(shard.views())
        large, rows = state.nbytes > LARGE_PASS, shard.tables.saved_bytes
        # Rows are copied in pieces, of which a few are held at once.
        nbytes = state.nbytes + min(rows, 4 * PIECE_BYTES)
        spare = self._spare.take()
        refusal = self._memory.take(nbytes)
        if refusal is not None:
            self.note(
                Part(entry, error=f"server {self._server} has no room for a copy of what it holds: {refusal}")
            )
            return False
        found = shard.tables.snapshot()
        copy = Copy(entry, job, state, nbytes, shard.tables, found, rows <= LARGE_PASS)
        if not large and not self._copying:
            self._wait(replace(copy, state=copied(copy.state)))
            self._begin()
            return False
        self._copy_beside(copy, spare)
        return True

    def _copy_beside(self, copy: Copy, spare: PrefaultedArrays | None) -> None:
        """Copy on another thread what nothing may write to meanwhile."""
        began, loop = running.now(), self._owner.loop
        self._copying += 1

        def copy_arrays() -> ShardState:
            return copied(copy.state, [] if spare is None else spare.wait())

        def ended(future: "asyncio.Future[ShardState]") -> None:
            self._copying -= 1
            error = future.exception()
            if error is None:
                state = future.result()
                fields = event("part_copied", bytes=state.nbytes, seconds=running.now() - began)
                log.debug("%d bytes to be saved were copied", state.nbytes, extra=fields)
                self._wait(replace(copy, state=state))
                self._begin()
            else:
                self._end(copy)
                self.note(Part(copy.entry, error=f"server {self._server} {_reason(error)}"))
            self._copied()

        loop.run_in_executor(self._copier, copy_arrays).add_done_callback(ended)

    def _begin(self) -> None:
        if self._busy or self._closed or self._next is None or self.store is None:
            return
        copy, self._next, self._busy = self._next, None, True
        written = self._owner.loop.run_in_executor(self._pool, self._write, self.store, copy)

        def ended(future: "asyncio.Future[Part]") -> None:
            self._end(copy)
            if copy.state.nbytes > LARGE_PASS and not self._closed:
                self._spare.keep(_dense(copy.state))
            if self._rows is not None and self._tables is not None:
                # The next increment builds on these files.
                self._tables.rows_written(self._rows.version)
            self._ended(future.result())

        written.add_done_callback(ended)

    def note(self, part: Part) -> None:
        """Take the outcome of a part that is not written here, or not at all."""
        self._early.append(part)
        self._tell_early()

    def passes(self) -> None:
        """Another server saves a checkpoint. So this one's next has all rows: which ones go until then is not
        remembered."""
        if self._tables is not None and not self.working:
            self._rows = None
            self._tables.no_changes()

    def _write(self, store: Store, copy: Copy) -> Part:
        """Write a copy, and its rows as changes of those that are written already, if that can be."""
        entry, version = copy.entry, copy.state.facts.version
        name, saved = name_of(entry, copy.job), None
        try:
            if copy.tables:
                before = None if copy.few or copy.tables is not self._tables else self._rows
                base = before if usable(store, before) else None
                pieces = copy.rows.pieces(None if base is None else base.version)
                saved = save_rows(store, name, self._server, version, pieces, base)
            files = save_shard(store, name, copy.state)
            if copy.tables is self._tables:
                self._rows = saved
            return Part(entry, {**files, **({} if saved is None else saved.files)})
        except CheckpointError as error:
            reason = f"server {self._server}: {error}"
        except Exception as error:
            fields = event("checkpoint_failed", version=version)
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
        self._spare.take()
        self._copier.shutdown()
        self._pool.shutdown()


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "has no memory for a copy of what it holds"
    return f"failed: {type(error).__name__}: {error}"


def _dense(state: ShardState) -> list[Floats]:
    """Return the arrays whose sizes are always the same."""
    return [values for name, values in state.arrays.items() if name.split("/")[0] not in TABLE_KINDS]
