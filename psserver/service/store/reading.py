"""Reads of versions: pinned by a ticket or not, sent or read in place."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray

from psserver.service.errors import Refused, invalid, precondition
from psserver.service.guard.calls import Caller
from psserver.service.guard.limits import READS, UNGRANTED
from psserver.service.guard.room import ShardMemory
from psserver.service.store.executor import Executor, Question
from psserver.service.store.shared_memory import ControlWord, Sharing
from psserver.service.store.state import SharedShard
from psserver.shard import Shard
from psserver.shard.arena import Version
from pswire.transport.segments import Place


@dataclass(slots=True, eq=False)
class Read:
    """A read under way. `caller`: the call to cut if it holds too much; None: never cut."""

    worker: str
    version: Version
    caller: Caller | None


class Reads:
    """Reads under way. The loop's thread owns it."""

    def __init__(self) -> None:
        # Oldest first.
        self._under_way: dict[Read, None] = {}

    def begin(self, worker: str, version: Version, caller: Caller | None) -> Read:
        """Add a read. Beyond the limit of its worker, the worker's oldest is cut."""
        mine = [read for read in self._under_way if read.worker == worker and _going(read)]
        if len(mine) >= READS.value:
            _cut(mine[0])
        read = Read(worker, version, caller)
        self._under_way[read] = None
        return read

    def end(self, read: Read) -> None:
        del self._under_way[read]

    def cut(self, lent: Sequence[Version], most: int) -> None:
        """Cut the oldest reads of up to `most` of these versions."""
        for version in lent[:most]:
            for read in self._under_way:
                if read.version is version:
                    _cut(read)


def _going(read: Read) -> bool:
    return read.caller is not None and not read.caller.cut_off


def _cut(read: Read) -> None:
    if read.caller is not None:
        read.caller.cancel()


class Reading:
    """Reads of one shard. `patience`: seconds that a reader may wait; `lease`: seconds that an unread grant may
    hold up an update. The loop's thread owns it."""

    def __init__(
        self,
        state: SharedShard,
        orders: Executor,
        memory: ShardMemory,
        sharing: Sharing,
        server: int,
        patience: float,
        lease: float,
    ) -> None:
        self._state, self._orders, self._memory, self._sharing = state, orders, memory, sharing
        self._server, self._patience, self._lease = server, patience, lease
        self._reads = Reads()
        # Number of reads of versions that nothing pins.
        self._ungranted = 0
        # The copy of the optimizer's state that is being read, at the version of its number; and whether one is
        # being made.
        self._slots: Version | None = None
        self._copying_slots = False
        # The copy of a table that is being made or read, and the bytes that were reserved for it.
        self._table: Version | None = None
        self._table_bytes = 0

    async def start(
        self, shard: Shard, ticket: int, version: int, worker: str, caller: Caller | None = None
    ) -> tuple[Read, bool]:
        """Begin a read of the version, which is kept until `end`; return it, and whether the ticket has pinned the
        version.

        `caller` is cut if it holds too much. Raises Refused (ABORTED) if the version is gone, or the ticket is
        another worker's.
        """
        check_reader(shard, ticket, worker)
        if ticket == 0 and shard.version < version:
            await self._state.wait_for(lambda: shard.version >= version, self._patience, self._server)
        granted = shard.arena.pinned(ticket, version)
        if not granted and self._ungranted >= UNGRANTED.value:
            await self._admit_ungranted()
        found = shard.arena.start_read(version, worker)
        if found is None:
            newest = shard.version
            if version > newest:
                raise invalid(f"version {version} does not exist yet; the newest is {newest}")
            raise Refused(
                grpc.StatusCode.ABORTED,
                f"version {version} is gone (its lease of {self._lease:g} s is over, or ticket {ticket} "
                f"is settled); the newest is {newest}: ask for a new grant",
            )
        self._state.served += 1
        self._ungranted += not granted
        return self._reads.begin(worker, found, caller), granted

    async def _admit_ungranted(self) -> None:
        """Wait for room among the few reads of versions that nothing pins: each may keep a buffer. Raises Refused."""
        if not await self._state.wait_for(
            lambda: self._ungranted < UNGRANTED.value, self._patience, self._server
        ):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self._server} has {self._ungranted} readers without a ticket already; try again",
            )

    async def start_slots(self, shard: Shard, version: int, worker: str, caller: Caller) -> Read:
        """Begin a read of the optimizer's state at `version` or later. `end` must follow. Raises Refused.

        All simultaneous readers share one copy; there is one copy at a time.
        """
        if shard.optimizer.per_worker:
            raise precondition(
                "this job's optimizer remembers something else for each worker: expected a read of weights only"
            )
        if not await self._state.wait_for(lambda: shard.version >= version, self._patience, self._server):
            raise invalid(f"version {version} does not exist yet; the newest is {shard.version}")

        def usable() -> bool:
            return self._slots is not None and self._slots.number >= version

        def free() -> bool:
            return self._slots is None and not self._copying_slots

        if not await self._state.wait_for(lambda: usable() or free(), self._patience, self._server):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self._server} is giving others an earlier state of the optimizer; try again",
            )
        if usable():
            assert self._slots is not None
            self._slots.readers += 1
        slots = self._slots or await self._copy_slots(shard)
        return self._reads.begin(worker, slots, caller)

    async def _copy_slots(self, shard: Shard) -> Version:
        values = shard.new_slots()
        refusal = self._memory.take_copy(values.nbytes)
        if refusal is not None:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server {self._server} has no room for a copy of what the optimizer remembers: {refusal}",
            )
        self._copying_slots = True
        made: list[Version] = []
        wanted = True

        def copied(version: int) -> None:
            self._copying_slots = False
            # The worker that asked is the first reader.
            self._slots = Version(version, values.reshape(-1), readers=1)
            made.append(self._slots)
            if not wanted:
                self._leave_slots(self._slots)
            self._state.changes.notify()

        asked = Question(lambda shard: values.nbytes, lambda shard: shard.copy_slots(values), copied)
        self._orders.submit([(self._state.executed, asked)])
        self._orders.execute_submitted()
        try:
            await self._state.wait_for(lambda: bool(made), float("inf"), self._server)
        except BaseException:
            wanted = False
            if made:
                self._leave_slots(made[0])
            raise
        return made[0]

    async def start_table(self, shard: Shard, number: int, version: int, worker: str, caller: Caller) -> Read:
        """Begin a read of all rows of table `number`, at `version` or later. `end` must follow. Raises Refused.

        There is one copy at a time.
        """
        if number >= len(shard.tables.tables):
            raise invalid(f"expected a table from 1 to {len(shard.tables.tables)}, got {number + 1}")
        table = shard.tables.tables[number]
        if not await self._state.wait_for(lambda: shard.version >= version, self._patience, self._server):
            raise invalid(f"version {version} does not exist yet; the newest is {shard.version}")
        if not await self._state.wait_for(lambda: self._table is None, self._patience, self._server):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE, f"server {self._server} is giving others a table; try again"
            )
        nbytes = table.count * table.row_octets
        refusal = self._memory.take_copy(nbytes)
        if refusal is not None:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server {self._server} has no room for a copy of a table: {refusal}",
            )
        self._table = Version(shard.version, np.zeros(0, np.float32), readers=1)
        self._table_bytes = nbytes
        octets: list[NDArray[np.uint8]] = []

        def copied(found: NDArray[np.uint8]) -> None:
            octets.append(found)
            self._state.changes.notify()

        asked = Question(lambda _: nbytes, lambda shard: shard.tables.tables[number].octets(), copied)
        self._orders.submit([(self._state.executed, asked)])
        self._orders.execute_submitted()
        try:
            await self._state.wait_for(lambda: bool(octets), float("inf"), self._server)
        except BaseException:
            self._leave_table()
            raise
        self._table = Version(shard.version, octets[0], readers=1)  # type: ignore[arg-type]
        return self._reads.begin(worker, self._table, caller)

    def _leave_table(self) -> None:
        self._table = None
        self._memory.give_copy(self._table_bytes)
        self._state.changes.notify()

    def _leave_slots(self, slots: Version) -> None:
        slots.readers -= 1
        if not slots.readers:
            self._slots = None
            self._memory.give_copy(slots.values.nbytes)
            self._state.changes.notify()

    def in_place(
        self, shard: Shard, ticket: int, version: int, worker: str, reader: ControlWord
    ) -> tuple[Place, list[Place]] | None:
        """Return where the version lies that the ticket has pinned, and where others may lie; None if it must be
        copied."""
        check_reader(shard, ticket, worker)
        if reader.has_read(ticket):
            # The control word says that it has been read: the pin has ended or may end at any time.
            return None
        values = shard.arena.values(version)
        place = self._sharing.place(values) if values is not None else None
        if place is None or shard.arena.read_in_place(ticket, version) is None:
            return None
        self._state.begin_read(ticket, reader)
        self._orders.reading_began()
        self._state.served += 1
        return place, self._sharing.places(shard.arena.arrays)

    def still_readable(self, shard: Shard, read: Read) -> bool:
        return shard.arena.values(read.version.number) is read.version.values

    def end(self, shard: Shard, ticket: int, read: Read, *, granted: bool, complete: bool) -> None:
        """End a read; if complete, end the ticket's pin too."""
        if read.version is self._slots:
            self._reads.end(read)
            self._leave_slots(read.version)
            return
        if read.version is self._table:
            self._reads.end(read)
            self._leave_table()
            return
        self._ungranted -= not granted
        if complete and granted:
            self._orders.forgive(shard, ticket)
        if complete:
            shard.arena.unpin(ticket)
        self._reads.end(read)
        shard.arena.end_read(read.version)
        self._orders.look()
        if self._state.changes.waiting:
            self._state.changes.notify()

    def end_beyond(self) -> None:
        """End reads of versions that were taken back, as far as they exceed the memory limit."""
        shard = self._state.shard
        if shard is not None and shard.arena.lent:
            self._reads.cut(shard.arena.lent, self._memory.versions_beyond)


def check_reader(shard: Shard, ticket: int, worker: str) -> None:
    """Raise Refused unless the ticket is the reader's own, because a read ends the ticket's pin."""
    opened = shard.staging.tickets.get(ticket)
    if opened is not None and opened.worker != worker:
        raise Refused(
            grpc.StatusCode.ABORTED,
            f"ticket {ticket} is {opened.worker}'s: expected its read, got one of {worker!r}",
        )
