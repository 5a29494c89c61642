"""Versions that are read: pinned by a ticket or not, sent or read in place."""

import grpc

from psserver.service.errors import Refused, invalid
from psserver.service.limits.room import ShardMemory
from psserver.service.limits.table import UNGRANTED
from psserver.service.limits.watch import Caller
from psserver.service.shard.executor import Executor
from psserver.service.shard.reads import Read, Reads
from psserver.service.shard.shared import SharedShard
from psserver.service.transport.shared_memory import ControlWord, Sharing
from psserver.shard import Shard
from pswire.transport.segments import Place


class Reading:
    """`patience`: seconds that a reader may wait; `lease`: that an unread grant may hold up an update. The loop's
    thread owns it."""

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
        # Reads under way of versions that nothing pins.
        self._ungranted = 0

    async def start(
        self, shard: Shard, ticket: int, version: int, worker: str, caller: Caller | None = None
    ) -> tuple[Read, bool]:
        """A read of the version, which is kept until `end`, and whether the ticket has pinned it. Raises Refused
        (ABORTED) when it is gone, or another's ticket's. `caller`: whose read it is, to be cut when it holds too much.
        """
        _check_reader(shard, ticket, worker)
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
        """Of versions that nothing pins there are few readers at once: they may each keep a buffer."""
        if not await self._state.wait_for(
            lambda: self._ungranted < UNGRANTED.value, self._patience, self._server
        ):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self._server} has {self._ungranted} readers without a ticket already; try again",
            )

    def in_place(
        self, shard: Shard, ticket: int, version: int, worker: str, reader: ControlWord
    ) -> tuple[Place, list[Place]] | None:
        """Where the version lies that the ticket has pinned, and where others may; None if it must be copied."""
        _check_reader(shard, ticket, worker)
        if reader.has_read(ticket):
            # By its own word; the pin has ended or may end at any time.
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
        """Versions were taken back from those who read them: what goes beyond the limit with that ends."""
        shard = self._state.shard
        if shard is not None and shard.arena.lent:
            self._reads.cut(shard.arena.lent, self._memory.versions_beyond)


def _check_reader(shard: Shard, ticket: int, worker: str) -> None:
    """A read ends the pin of its ticket: it must be the reader's own."""
    opened = shard.staging.tickets.get(ticket)
    if opened is not None and opened.worker != worker:
        raise Refused(
            grpc.StatusCode.ABORTED,
            f"ticket {ticket} is {opened.worker}'s: expected its read, got one of {worker!r}",
        )
