"""The coordinator's side of Follow with replicas: to whichever server serves a part, from whichever one coordinates.

Both copies of the coordinator keep the orders that a part may lack; the one that leads sends them. So neither a part's
new primary nor a new coordinator begins with a gap.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from psserver.order_messages import ORDERS
from psserver.service.job.follower import Follower
from psserver.service.runtime import Runtime
from psserver.shard import VersionMade
from pswire import running
from pswire.addresses import Address
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.v1 import shard_pb2

#: Seconds between two looks at who serves the part, and between two attempts to reach it; and that it may take at the
#: job's end until it is served.
LOOK: Final = 0.05
PATIENCE: Final = 60.0
_NOWHERE: Final = Address("localhost", 0)


class PartFollower(Follower):
    """Delivery of the log to the server that serves a part. The loop's thread owns it.

    `where`: returns its index and address, if they are known. `opening`: makes the first message. `on_lost`: called if
    nobody serves the part for `patience` seconds, after somebody did, or for good.
    """

    def __init__(
        self,
        part: int,
        where: Callable[[int], tuple[int, Address] | None],
        opening: Callable[[int], shard_pb2.Open],
        worker_timeout: float,
        runtime: Runtime,
        patience: float,
        credentials: Credentials = NO_TLS,
        on_lost: Callable[[int, str, str], None] = lambda _, __, ___: None,
        on_executed: Callable[[int, VersionMade], None] = lambda _, __: None,
    ) -> None:
        super().__init__(
            *(part, _NOWHERE, shard_pb2.Open(), worker_timeout, runtime, on_lost, on_executed),
            patience=patience,
            credentials=credentials,
        )
        # When it was served last; infinite before the first time.
        self._served = math.inf
        self._where, self._make_opening = where, opening
        # The items that one of the copies has not executed, as last reported.
        self.lag = 0
        self.name = f"part {part}"
        # Why nobody will ever serve it again.
        self._gone = ""
        # Until when its last results are asked for again.
        self._until: float | None = None

    # What is to be sent, now or by another server

    def kept(self) -> bytes:
        """Return the orders that are kept, for a copy."""
        message = shard_pb2.Decisions()
        for index, order in self._kept:
            ORDERS.fill(message.decisions.add(index=index), order)
        return message.SerializeToString()

    def keep(self, data: bytes) -> None:
        """Keep what `kept` gave on another server. Raises ValueError for anything else."""
        for decision in shard_pb2.Decisions.FromString(data).decisions:
            order = ORDERS.from_wire(decision)
            if order is None:
                raise ValueError(f"decision {decision.index}: expected a known kind")
            self._kept.append((decision.index, order))

    # What is asked of it

    def silent(self, patience: float) -> None:
        """Return None: a part whose server is silent has another one soon."""

    async def again(self) -> bool:
        """Wait a moment for another server of the part; return False after `PATIENCE` seconds of that."""
        now = running.now()
        self._until = now + PATIENCE if self._until is None else self._until
        await asyncio.sleep(LOOK)
        return now < self._until

    def lose(self, why: str) -> None:
        """Note that nobody will ever serve the part again."""
        self._gone = why

    # The stream

    async def _run(self) -> None:
        """Serve whichever server has the part, until the end."""
        while not self._closing.is_set():
            if self._patience is not None and running.now() - self._served > self._patience:
                self._gone = f"no server has served it for {self._patience:g} s"
            if self._gone:
                self._lose(self._denied or "server", f"part {self.server} was lost: {self._gone}")
                return
            where = self._where(self.server)
            if where is None or not where[1].port:
                await asyncio.sleep(LOOK)
                continue
            self._index, address = where
            if address != self.address:
                await self.channel.close()
                self.address = address
                options = [*CHANNEL_OPTIONS(self._timeout), ("grpc.use_local_subchannel_pool", 1)]
                self.channel = self._runtime.dial(address, options, self._credentials)
            ended = await self._follow_here(where)
            if self.state == "ready":
                self._served = running.now()
            self.state = "ended" if self._closing.is_set() else "connecting"
            self._changes.notify()
            if ended is not None and not ended[1] and not self._closing.is_set():
                self._lose(self._denied or "server", f"part {self.server} was lost: {address}: {ended[0]}")
                return
            await asyncio.sleep(LOOK)

    async def _follow_here(self, where: tuple[int, Address]) -> tuple[str, bool] | None:
        """Serve one stream, until it ends or the part is served elsewhere; return why it ended, and whether that may
        pass."""
        self._opening = self._make_opening(self.server)
        following = asyncio.ensure_future(self._follow())
        try:
            while not following.done():
                if self._where(self.server) not in (None, where):
                    return None
                await asyncio.wait([following], timeout=LOOK)
            return following.result()
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    def _received(self, reply: shard_pb2.FollowReply) -> None:
        super()._received(reply)
        self.lag = int(reply.lag)
