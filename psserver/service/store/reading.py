"""Reads of versions, which a ticket holds or not, sent or in shared memory; and of what has no versions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from psserver.service.errors import aborted, exhausted, invalid, unavailable
from psserver.service.guard.calls import CallPeer
from psserver.service.guard.memory import Memory
from psserver.service.store.executor import Executor, Question
from psserver.service.store.shared_memory import ControlWord, Sharing
from psserver.service.store.state import SharedShard
from psserver.shard import Shard
from psserver.shard.arena import Version
from pswire.transport.segments import Segment


@dataclass(slots=True, eq=False)
class Read:
    """A read under way. `caller`: the call to cut if it holds too much, which has one read at a time."""

    version: Version
    caller: CallPeer


# Copies something of a shard; returns the version, and the copy.
Look = Callable[[Shard], tuple[int, NDArray[Any]]]


@dataclass(slots=True, eq=False)
class _Copy:
    """A copy of what has no versions, shared by those who read it at one time. `version`: None while it is made."""

    nbytes: int
    version: Version | None = None
    readers: int = 1


class Reading:
    """Reads of one shard. `patience`: seconds that a reader may wait; `read_limit`: seconds that an unread grant may
    hold up an update. The loop's thread owns it."""

    def __init__(
        self,
        state: SharedShard,
        orders: Executor,
        memory: Memory,
        sharing: Sharing,
        server: int,
        patience: float,
        read_limit: float,
    ) -> None:
        self._state, self._orders, self._memory, self._sharing = state, orders, memory, sharing
        self._server, self._patience, self._read_limit = server, patience, read_limit
        self._under_way: set[Read] = set()
        # By what was copied.
        self._copies: dict[str, _Copy] = {}

    def _begin(self, version: Version, caller: CallPeer) -> Read:
        self._under_way.add(read := Read(version, caller))
        return read

    async def start(self, shard: Shard, ticket: int, version: int, worker: str, caller: CallPeer) -> Read:
        """Begin a read of the version, which is kept until `end`. `caller` is cut if it holds too much.

        Raises Refused (ABORTED) if the version is gone, or the ticket is another worker's.
        """
        check_reader(shard, ticket, worker)
        if ticket == 0 and shard.version < version:
            await self._state.wait_for(lambda: shard.version >= version, self._patience, self._server)
        found = shard.arena.start_read(version)
        if found is None:
            newest = shard.version
            if version > newest:
                raise invalid(f"version {version} does not exist yet; the newest is {newest}")
            raise aborted(
                f"version {version} is gone (it was not read within {self._read_limit:g} s, or ticket {ticket} "
                f"is settled); the newest is {newest}: ask for a new grant",
            )
        self._state.served += 1
        return self._begin(found, caller)

    async def start_slots(self, shard: Shard, version: int, caller: CallPeer) -> Read:
        """Begin a read of the optimizer's state at `version` or later. `end` must follow. Raises Refused."""

        def nbytes(shard: Shard) -> int:
            return 4 * len(shard.optimizer.slots) * shard.layout.trainable

        copied = self._copied("what the optimizer remembers", shard, nbytes, Shard.copied_slots, version)
        return self._begin(await copied, caller)

    async def start_table(self, shard: Shard, number: int, version: int, caller: CallPeer) -> Read:
        """Begin a read of all rows of table `number`, at `version` or later. `end` must follow. Raises Refused."""
        tables = shard.tables.tables
        if number >= len(tables):
            raise invalid(f"expected a table from 1 to {len(tables)}, got {number + 1}")
        table = tables[number]

        def octets(shard: Shard) -> tuple[int, NDArray[Any]]:
            return shard.version, table.octets()

        def nbytes(shard: Shard) -> int:
            return table.count * table.row_octets

        copied = self._copied(f"table {table.spec.name!r}", shard, nbytes, octets, version)
        return self._begin(await copied, caller)

    async def _copied(
        self, what: str, shard: Shard, nbytes: Callable[[Shard], int], look: Look, version: int
    ) -> Version:
        """Return a copy at `version` or later, shared with others who read it now. Raises Refused."""
        if not await self._state.wait_for(lambda: shard.version >= version, self._patience, self._server):
            raise invalid(f"version {version} does not exist yet; the newest is {shard.version}")

        def free() -> bool:
            copy = self._copies.get(what)
            return copy is None or (copy.version is not None and copy.version.number >= version)

        if not await self._state.wait_for(free, self._patience, self._server):
            raise unavailable(
                f"server {self._server} is giving others an earlier copy of {what}; try again",
            )
        copy = self._copies.get(what)
        if copy is None:
            refusal = self._memory.take(taken := nbytes(shard))
            if refusal is None:
                copy = self._copies[what] = _Copy(taken)
                refusal = await self._copy(what, copy, nbytes, look)
            if refusal is not None:
                raise exhausted(
                    f"server {self._server} has no room for a copy of {what}: {refusal}",
                )
        else:
            copy.readers += 1
        assert copy is not None and copy.version is not None
        return copy.version

    async def _copy(self, what: str, copy: _Copy, nbytes: Callable[[Shard], int], look: Look) -> str | None:
        """Make a copy for its first reader. Return why there is no room, or None."""
        done = False

        def looked(shard: Shard) -> tuple[int, NDArray[Any]] | None:
            try:
                return look(shard)
            except MemoryError:
                return None

        def copied(found: tuple[int, NDArray[Any]] | None) -> None:
            nonlocal done
            done = True
            if found is not None:
                copy.version = Version(*found)
            if found is None or not copy.readers:
                self._leave(what, copy)
            self._state.changes.notify()

        self._orders.submit([(self._state.executed, Question(nbytes, looked, copied))])
        self._orders.execute_submitted()
        try:
            await self._state.wait_for(lambda: done, float("inf"), self._server)
        except BaseException:
            copy.readers -= 1
            if copy.version is not None and not copy.readers:
                self._leave(what, copy)
            raise
        return None if copy.version is not None else "its memory is full"

    def _leave(self, what: str, copy: _Copy) -> None:
        del self._copies[what]
        self._memory.give(copy.nbytes)
        self._state.changes.notify()

    def in_place(
        self, shard: Shard, ticket: int, version: int, worker: str, reader: ControlWord
    ) -> tuple[Segment, list[Segment]] | None:
        """Return where the version lies that the ticket holds, and where others may lie; None if it must be copied."""
        check_reader(shard, ticket, worker)
        opened = shard.staging.tickets.get(ticket)
        if opened is None or opened.sealed or reader.has_read(ticket):
            # It has been read: the hold has ended or may end at any time.
            return None
        values = shard.arena.values(version)
        segment = self._sharing.segment(values) if values is not None else None
        if segment is None or shard.holds.of(ticket) != version:
            return None
        self._state.begin_read(ticket, reader)
        self._orders.reading_began()
        self._state.served += 1
        return segment, self._sharing.segments(shard.arena.arrays)

    def end(self, shard: Shard, ticket: int, read: Read, *, complete: bool) -> None:
        """End a read; if complete, its ticket has read its version."""
        self._under_way.remove(read)
        for what, copy in self._copies.items():
            if copy.version is read.version:
                copy.readers -= 1
                if not copy.readers:
                    self._leave(what, copy)
                return
        shard.arena.end_read(read.version)
        if complete:
            self._orders.forgive(shard, ticket)
            shard.holds.has_read(ticket)
        self._orders.look()
        if self._state.changes.waiting:
            self._state.changes.notify()

    def end_beyond(self) -> None:
        """End reads of superseded versions, as far as these exceed the memory limit."""
        shard, memory = self._state.shard, self._memory
        if shard is None or not shard.layout.nbytes or not shard.arena.being_read:
            return
        most = max(0, -(-(memory.total - memory.limit) // shard.layout.nbytes))
        ending = {id(version) for version in shard.arena.being_read[:most]}
        for read in self._under_way:
            if id(read.version) in ending:
                read.caller.cancel()


def check_reader(shard: Shard, ticket: int, worker: str) -> None:
    """Raise Refused unless the ticket is the reader's own, because a read ends the ticket's hold."""
    opened = shard.staging.tickets.get(ticket)
    if opened is not None and opened.worker != worker:
        raise aborted(
            f"ticket {ticket} is {opened.worker}'s: expected its read, got one of {worker!r}",
        )
