"""One server's part of a checkpoint: copied between two orders, written while training continues."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, FileFacts, Store, name_of, save_shard, settled
from psserver.service.guard.ledger import MODEL, MemoryLedger
from psserver.service.net.loop import LARGE_PASS, Owner
from psserver.shard import Shard, ShardState, copied
from pswire.logs.events import event

log = logging.getLogger("ps-server")


Floats = NDArray[np.float32]


# Of memory, while nothing is in it.
SPARE_KIND = "checkpoint, spare"


# Elements that are touched at once: whoever runs beside this gets a turn.
PIECE = 1 << 22


# One in so many is touched: a page is no smaller.
STEP = 1024


@dataclass(frozen=True, slots=True)
class PrefaultedArrays:
    """Arrays that a thread has the system find memory for, until it is told to stop. `wait` before they are used."""

    arrays: list[Floats]
    _stop: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def before(cls, arrays: list[Floats]) -> "PrefaultedArrays":
        """They have their memory already."""
        made = cls(arrays)
        made._ended.set()
        return made

    def run(self) -> None:
        """On another thread. Raises nothing: the system gives such memory, or ends the process."""
        try:
            for piece in self.pieces():
                if self._stop.is_set():
                    return
                piece[::STEP] = 0
        finally:
            self._ended.set()

    def pieces(self) -> Iterator[Floats]:
        """All of them, a little at a time."""
        for values in self.arrays:
            for start in range(0, values.size, PIECE):
                yield values[start : start + PIECE]

    def stop(self) -> None:
        """They are needed now, or not at all."""
        self._stop.set()

    def wait(self) -> list[Floats]:
        """The arrays, once nobody writes to them any more: soon after `stop`. Any thread may."""
        self._ended.wait()
        return self.arrays


class SpareArrays:
    """Arrays of float32 that nobody uses, in the account of `memory`. The loop's thread owns it."""

    def __init__(self, memory: MemoryLedger, threads: Executor) -> None:
        self._memory, self._threads = memory, threads
        self._held: PrefaultedArrays | None = None

    def prepare(self, sizes: Collection[int]) -> Future[None] | None:
        """Have arrays of so many elements ready soon, where memory has room for them; beside the loop. None: there
        are some, or there is no room."""
        if self._held is not None or self._memory.take(MODEL, SPARE_KIND, 4 * sum(sizes)) is not None:
            return None
        try:
            self._held = PrefaultedArrays([np.empty(size, np.float32) for size in sizes])
        except MemoryError:
            self._memory.put(MODEL, SPARE_KIND, 0)
            return None
        return self._threads.submit(self._held.run)

    def keep(self, arrays: Iterable[Floats]) -> None:
        """They are of use for the next copy, where memory has room for them."""
        kept = list(arrays)
        if self._held is None and self._memory.take(MODEL, SPARE_KIND, sum(a.nbytes for a in kept)) is None:
            self._held = PrefaultedArrays.before(kept)

    def take(self) -> PrefaultedArrays | None:
        """What there is: whoever takes it accounts for it."""
        held, self._held = self._held, None
        if held is not None:
            held.stop()
            self._memory.put(MODEL, SPARE_KIND, 0)
        return held


# Of memory.
KIND = "checkpoint"


# Parts of which the outcome is known.
REMEMBERED = 4


@dataclass(frozen=True, slots=True)
class Part:
    """What became of the part that log entry `entry` ordered: its files, or why there are none."""

    entry: int
    files: dict[str, FileFacts] = field(default_factory=dict)
    error: str = ""


class PassedOver(CheckpointError):
    """Of a checkpoint: a newer one has taken its place."""


def passed_over(entry: int, written: Iterable[int]) -> bool:
    """Whether the part of that entry will never be there, by the entries whose parts are written: for parts are written
    in the order of the log, and of those that wait the newest takes the others' place."""
    known = set(written)
    return entry not in known and max(known, default=entry) > entry


class PartSaver:
    """The loop's thread owns it. `parts`: the newest that are written, or failed, by entry.

    One is written at a time; one more waits, and a newer one takes its place. `store`: None where this server has
    no folder. `changed` is called with every new part, `copied` when the shard's arrays may be written to again.
    Two threads: what is to be saved is copied while another part is being written. A copy is held in `memory` from
    before it is made until it is written, or a newer one takes its place; where it has no room there, there is no part.
    Where `periodic`, the job takes checkpoints while it trains: memory for a copy is got before the first, and kept
    between them, as far as there is room. `release` gives it up.
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
        self._busy = self._copying = self._closed = False
        self._next: tuple[int, str, ShardState] | None = None
        self._spare = SpareArrays(memory, self._pool)

    def prepare(self, shard: Shard, unused: Collection[Floats] = ()) -> None:
        """Have memory ready for a copy of what the shard holds, which is much: training would wait for it.

        `unused`: arrays of the same sizes that nobody needs any more.
        """
        state = settled(shard.views())
        if not self.periodic or self.store is None or self._closed or state.nbytes <= LARGE_PASS:
            return
        if unused:
            self._spare.keep(unused)
        else:
            self._spare.prepare([values.size for values in state.arrays.values()])

    @property
    def newest(self) -> int:
        """The entry of the newest part of which the outcome is known; -1 before the first."""
        return max(self.parts, default=-1)

    @property
    def working(self) -> bool:
        """A part is being copied or written."""
        return self._busy or self._copying

    def save(self, entry: int, job: str, shard: Shard) -> bool:
        """The shard has executed the entries up to this one. What it holds is copied: a little now, much beside the
        loop. Whether it is much: then nothing may write to it until `copied` is called."""
        if self.store is None:
            missing = (
                "has no folder for checkpoints: give every server the same --out, on a disk that all share"
            )
            self._tell(Part(entry, error=f"server {self._server} {missing}"))
            return False
        # Before the copy: of those that wait, the newest will do.
        self._wait(None)
        state = settled(shard.views())
        spare = self._spare.take()
        refusal = self._memory.take(MODEL, KIND, state.nbytes)
        if refusal is not None:
            # Buffers that are kept for payloads to come.
            shard.staging.trim()
            refusal = self._memory.take(MODEL, KIND, state.nbytes)
        if refusal is not None:
            self._tell(
                Part(entry, error=f"server {self._server} has no room for a copy of what it holds: {refusal}")
            )
            return False
        if state.nbytes <= LARGE_PASS:
            self._wait((entry, job, copied(state)))
            self._begin()
            return False
        began, self._copying = time.monotonic(), True
        copying = self._owner.loop.run_in_executor(self._pool, _copied, state, spare)

        def ended(future: "asyncio.Future[ShardState]") -> None:
            self._copying, error = False, future.exception()
            if error is None:
                fields = event("part_copied", bytes=state.nbytes, seconds=time.monotonic() - began)
                log.debug("%d bytes to be saved were copied", state.nbytes, extra=fields)
                self._wait((entry, job, future.result()))
                self._begin()
            elif isinstance(error, MemoryError):
                self._give(state)
                self._tell(
                    Part(entry, error=f"server {self._server} has no memory for a copy of what it holds")
                )
            else:
                self._give(state)
                self._tell(Part(entry, error=f"server {self._server}: {type(error).__name__}: {error}"))
            self._copied()

        copying.add_done_callback(ended)
        return True

    def _begin(self) -> None:
        if self._busy or self._closed or self._next is None or self.store is None:
            return
        (entry, job, state), self._next, self._busy = self._next, None, True
        written = self._owner.loop.run_in_executor(self._pool, self._write, self.store, entry, job, state)

        def ended(future: "asyncio.Future[Part]") -> None:
            self._give(state)
            if state.nbytes > LARGE_PASS and not self._closed:
                self._spare.keep(state.arrays.values())
            self._ended(future.result())

        written.add_done_callback(ended)

    def _write(self, store: Store, entry: int, job: str, state: ShardState) -> Part:
        try:
            return Part(entry, save_shard(store, name_of(entry, job), state))
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

    def _wait(self, part: tuple[int, str, ShardState] | None) -> None:
        """It is the next to be written, in place of the one that was."""
        if self._next is not None:
            self._give(self._next[2])
        self._next = part

    def _give(self, state: ShardState) -> None:
        self._memory.give(MODEL, KIND, state.nbytes)

    def release(self) -> None:
        """Others need the memory that is kept for the next part."""
        self._spare.take()

    def _tell(self, part: Part) -> None:
        self.parts[part.entry] = part
        while len(self.parts) > REMEMBERED:
            del self.parts[min(self.parts)]
        self._changed()

    def close(self) -> None:
        """A part under way is waited for."""
        self._closed = True
        self._spare.take()
        self._pool.shutdown()


def _copied(state: ShardState, spare: PrefaultedArrays | None) -> ShardState:
    return copied(state, [] if spare is None else spare.wait())
