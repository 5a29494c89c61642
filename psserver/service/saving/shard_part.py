"""One server's part of a checkpoint: taken between two orders, copied and written while training goes on."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint import CheckpointError, FileFacts, Store, name_of, save_shard, settled
from psserver.service.limits.ledger import MODEL, MemoryLedger
from psserver.service.loop.heavy import LARGE
from psserver.service.loop.owner import Owner
from psserver.shard import Shard, ShardState, copied
from pswire.logs.events import event

log = logging.getLogger("ps-server")

Floats = NDArray[np.float32]

# Of memory.
KIND = "checkpoint"
# The same, while nothing is in it.
SPARE = "checkpoint, spare"
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
    The arrays of one that is written are kept for the next, where memory is plenty: until `release`.
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
        self._owner, self._server, self._changed, self._copied = owner, server, changed, copied
        self._memory = memory
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="checkpoint")
        self._busy = self._closed = False
        self._next: tuple[int, str, ShardState] | None = None
        self._spare: list[Floats] = []

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
        spare = self._taken_spare()
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
        if state.nbytes <= LARGE:
            self._wait((entry, job, copied(state)))
            self._begin()
            return False
        began = time.monotonic()
        copying = self._owner.loop.run_in_executor(self._pool, copied, state, spare)

        def ended(future: "asyncio.Future[ShardState]") -> None:
            error = future.exception()
            if error is None:
                told = event("part_copied", bytes=state.nbytes, seconds=time.monotonic() - began)
                log.debug("%d bytes to be saved were copied", state.nbytes, extra=told)
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
            self._keep(state)
            self._ended(future.result())

        written.add_done_callback(ended)

    def _write(self, store: Store, entry: int, job: str, state: ShardState) -> Part:
        try:
            return Part(entry, save_shard(store, name_of(entry, job), state))
        except CheckpointError as error:
            return Part(entry, error=f"server {self._server}: {error}")
        except Exception as error:
            told = event("checkpoint_failed", version=state.facts.version)
            log.exception("this server's part of a checkpoint was not written", extra=told)
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

    def _keep(self, state: ShardState) -> None:
        """Its arrays are of use for the next one, if half of all memory is free with them."""
        large = not self._spare and state.nbytes > LARGE
        if large and 2 * (self._memory.total + state.nbytes) <= self._memory.limit:
            if self._memory.take(MODEL, SPARE, state.nbytes) is None:
                self._spare = list(state.arrays.values())

    def _taken_spare(self) -> list[Floats]:
        spare, self._spare = self._spare, []
        self._memory.put(MODEL, SPARE, 0)
        return spare

    def release(self) -> None:
        """Others need the memory that is kept for the next part."""
        self._taken_spare()

    def _tell(self, part: Part) -> None:
        self.parts[part.entry] = part
        while len(self.parts) > REMEMBERED:
            del self.parts[min(self.parts)]
        self._changed()

    def close(self) -> None:
        """A part under way is waited for."""
        self._closed = True
        self._pool.shutdown()
