"""One server's part of a checkpoint: copied between two orders, written while training continues."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, FileFacts, Store, name_of, save_shard, settled
from psserver.checkpoint.increments import RowFiles, only_rows, save_rows, usable, without_rows
from psserver.service.guard.ledger import MODEL, MemoryLedger
from psserver.service.net.loop import LARGE_PASS, Owner
from psserver.shard import Shard, ShardState, copied
from psserver.shard.tables import TABLE_KINDS, Tables
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]
# Kind of memory that is reserved but unused.
SPARE_KIND = "checkpoint, spare"
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

    def __init__(self, memory: MemoryLedger, threads: Executor) -> None:
        self._memory, self._threads = memory, threads
        self._held: PrefaultedArrays | None = None

    def prepare(self, sizes: Collection[int]) -> Future[None] | None:
        """Prepare arrays of those sizes on another thread, if memory has room. Returns None if there are some, or
        no room."""
        if self._held is not None or self._memory.take(MODEL, SPARE_KIND, 4 * sum(sizes)) is not None:
            return None
        try:
            self._held = PrefaultedArrays([np.empty(size, np.float32) for size in sizes])
        except MemoryError:
            self._memory.put(MODEL, SPARE_KIND, 0)
            return None
        return self._threads.submit(self._held.run)

    def keep(self, arrays: Iterable[Floats]) -> None:
        """Keep the arrays for the next copy, if memory has room."""
        kept = list(arrays)
        if self._held is None and self._memory.take(MODEL, SPARE_KIND, sum(a.nbytes for a in kept)) is None:
            self._held = PrefaultedArrays.before(kept)

    def take(self) -> PrefaultedArrays | None:
        """Return the arrays, if any. The caller accounts for them."""
        held, self._held = self._held, None
        if held is not None:
            held.stop()
            self._memory.put(MODEL, SPARE_KIND, 0)
        return held


# Kind of memory of a copy.
KIND = "checkpoint"
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
    """A copy of a server's state, made for log entry `entry`. `nbytes`: the memory taken for it. `base`: the files that
    its rows of `tables` are changes of."""

    entry: int
    job: str
    state: ShardState
    nbytes: int
    tables: Tables
    base: RowFiles | None = None


class PassedOver(CheckpointError):
    """A newer checkpoint has taken the place of this one."""


def passed_over(entry: int, written: Iterable[int]) -> bool:
    """Return whether the part of that entry will never be written, given the entries whose parts are written.

    Parts are written in log order, and of waiting ones the newest replaces the others.
    """
    known = set(written)
    return entry not in known and max(known, default=entry) > entry


class PartSaver:
    """Saves this server's parts of checkpoints. The loop's thread owns it.

    `parts`: the newest outcomes by entry. One part is written at a time; one more waits, and a newer one replaces
    it. `store`: None if this server has no folder. `changed` is called with every new outcome, `copied` when the
    shard may be written to again: rows of tables are then still being copied. One thread copies while another one
    writes a part. A copy is accounted for in `memory` until it is written or replaced; without room there is no part.
    If `periodic`, the job takes checkpoints while it trains: memory for a copy is prepared and kept, as far as there
    is room, until `release`.
    """

    def __init__(
        self,
        owner: Owner,
        server: int,
        memory: MemoryLedger,
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
        # The tables, and the files that have their rows as last written.
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
            self._tell(Part(entry, error=f"server {self._server} {missing}"))
            return False
        # Drop the waiting part before the copy: the newest is enough.
        self._wait(None)
        if shard.tables is not self._tables:
            self._tables, self._rows = shard.tables, None
        state = settled(shard.views())
        nbytes = state.nbytes + shard.tables.saved_bytes
        spare = self._spare.take()
        refusal = self._memory.take(MODEL, KIND, nbytes)
        if refusal is not None:
            # Free buffers that are kept for coming payloads.
            shard.staging.trim()
            refusal = self._memory.take(MODEL, KIND, nbytes)
        if refusal is not None:
            self._tell(
                Part(entry, error=f"server {self._server} has no room for a copy of what it holds: {refusal}")
            )
            return False
        if nbytes <= LARGE_PASS and not self._copying:
            whole = ShardState(state.facts, {**copied(state).arrays, **shard.tables.rows_saved()})
            self._wait(Copy(entry, job, whole, nbytes, shard.tables))
            self._begin()
            return False
        self._copy_beside(entry, job, shard, state, nbytes, spare, self.store)
        return True

    def _copy_beside(
        self,
        entry: int,
        job: str,
        shard: Shard,
        state: ShardState,
        nbytes: int,
        spare: PrefaultedArrays | None,
        store: Store,
    ) -> None:
        """Copy on another thread: first what nothing may write to meanwhile, then the rows, while updates go on."""
        began, loop = time.monotonic(), self._owner.loop
        self._copying += 1
        # The last that is written: another one may be under way, for longer than the interval.
        base, tables, rows = self._rows, shard.tables, shard.tables.snapshot()

        def copy_arrays() -> ShardState:
            return copied(state, [] if spare is None else spare.wait())

        def copy_rows(arrays: ShardState) -> Copy:
            since = base if tables and usable(store, base) else None
            found = rows.copy(None if since is None else since.version)
            whole = ShardState(arrays.facts, {**arrays.arrays, **found})
            return Copy(entry, job, whole, nbytes, tables, since)

        def arrays_copied(future: "asyncio.Future[ShardState]") -> None:
            if future.exception() is not None:
                ended(future)
            elif not self._closed:
                copying = loop.run_in_executor(self._copier, copy_rows, future.result())
                copying.add_done_callback(ended)
            self._copied()

        def ended(future: "asyncio.Future[Any]") -> None:
            self._copying -= 1
            error = future.exception()
            tables.drop(rows)
            self._forget_gone()
            if error is None:
                size = future.result().state.nbytes
                fields = event("part_copied", bytes=size, seconds=time.monotonic() - began)
                log.debug("%d bytes to be saved were copied", size, extra=fields)
                self._wait(future.result())
                self._begin()
            elif isinstance(error, MemoryError):
                self._give(nbytes)
                self._tell(
                    Part(entry, error=f"server {self._server} has no memory for a copy of what it holds")
                )
            else:
                self._give(nbytes)
                self._tell(Part(entry, error=f"server {self._server}: {type(error).__name__}: {error}"))

        loop.run_in_executor(self._copier, copy_arrays).add_done_callback(arrays_copied)

    def _begin(self) -> None:
        if self._busy or self._closed or self._next is None or self.store is None:
            return
        copy, self._next, self._busy = self._next, None, True
        written = self._owner.loop.run_in_executor(self._pool, self._write, self.store, copy)

        def ended(future: "asyncio.Future[Part]") -> None:
            self._give(copy.nbytes)
            if copy.nbytes > LARGE_PASS and not self._closed:
                self._spare.keep(_dense(copy.state))
            self._forget_gone()
            self._ended(future.result())

        written.add_done_callback(ended)

    def note(self, part: Part) -> None:
        """Take the outcome of a part that another server has written."""
        self._tell(part)

    def passes(self) -> None:
        """Another server saves a checkpoint. So this one's next has all rows: which ones go until then is not
        remembered."""
        if self._tables is not None and not self.working:
            self._rows = None
            self._tables.no_changes()

    def _forget_gone(self) -> None:
        """Forget rows that went before the files on which the next increment builds; a copy under way needs them."""
        if self._rows is not None and self._tables is not None and not self._copying:
            self._tables.rows_written(self._rows.version)

    def _base_of(self, store: Store, copy: Copy) -> RowFiles | None:
        """Return the files to which the changes that were copied are added: the newest ones that they go back to.

        Raises CheckpointError if these files are gone.
        """
        if copy.base is None:
            return None
        for base in (self._rows, copy.base):
            if base is not None and base.version >= copy.base.version and store.has(base.name, base.files):
                return base
        raise CheckpointError(f"the rows of {copy.base.name}, of which only changes were copied, are gone")

    def _write(self, store: Store, copy: Copy) -> Part:
        entry, state = copy.entry, copy.state
        name, rows, saved = name_of(entry, copy.job), only_rows(copy.state.arrays), None
        try:
            if rows:
                base = self._base_of(store, copy)
                saved = save_rows(store, name, self._server, state.facts.version, rows, base)
                state = ShardState(state.facts, without_rows(state.arrays))
            files = save_shard(store, name, state)
            if copy.tables is self._tables:
                self._rows = saved
            return Part(entry, {**files, **({} if saved is None else saved.files)})
        except CheckpointError as error:
            return Part(entry, error=f"server {self._server}: {error}")
        except Exception as error:
            fields = event("checkpoint_failed", version=state.facts.version)
            log.exception("this server's part of a checkpoint was not written", extra=fields)
            return Part(entry, error=f"server {self._server}: {type(error).__name__}: {error}")

    def _ended(self, part: Part) -> None:
        self._busy = False
        self._tell(part)
        self._begin()

    def _wait(self, part: Copy | None) -> None:
        """Make `part` the next to be written, in place of the waiting one."""
        if self._next is not None:
            self._give(self._next.nbytes)
        self._next = part

    def _give(self, nbytes: int) -> None:
        self._memory.give(MODEL, KIND, nbytes)

    def release(self) -> None:
        """Release the memory that is kept for the next part."""
        self._spare.take()

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


def _dense(state: ShardState) -> list[Floats]:
    """Return the arrays whose sizes are always the same."""
    return [values for name, values in state.arrays.items() if name.split("/")[0] not in TABLE_KINDS]
