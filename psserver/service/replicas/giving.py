"""A primary gives a copy of everything to a server that has none, while training goes on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from psserver.records import StateError
from psserver.replication.pace import CopyRate
from psserver.service.net.loop import settle
from psserver.service.pools import LARGE_PASS
from psserver.service.replicas.lending import Lent
from psserver.service.replicas.link import ServerLink
from psserver.service.replicas.transfer import RATE, CopyError, WholeCopy, digest_of
from psserver.service.store.executor import Question
from psserver.service.store.host import ShardHost
from psserver.shard import Shard, ShardState, copied
from psserver.shard.tables.saved import SavedRows
from pswire import running
from pswire.logs.events import event
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Seconds between two looks at whether it was taken up.
LOOK = 0.02


class Given(NamedTuple):
    """The source of a copy: a shard behind its first `sent` orders, all of which are submitted, and what there is to
    know besides.

    `about` raises StateError where that cannot be saved. `sync`: makes what the copy does not have survive this server;
    it may block, and raises LogError.
    """

    host: ShardHost
    sent: int
    about: Callable[[], dict[str, Any]]
    sync: Callable[[], None] = lambda: None


class Capture:
    """The state of a shard behind the orders submitted so far, and the memory of a copy of it.

    Nothing writes to the shard from then on until its arrays are copied; updates go on while `copy` copies rows of
    tables. `close` ends it at any time, and frees the memory.
    """

    def __init__(self, given: Given) -> None:
        self._host, self._held, self._closed = given.host, False, False
        self._nbytes, self._refusal = 0, ""
        self._state: ShardState | None = None
        self._rows: SavedRows | None = None
        self._lent: Lent | None = None
        self._shard = given.host.state.shard
        self._looked: asyncio.Future[None] = self._host.runtime.loop.create_future()
        if self._shard is None:
            settle(self._looked)
            return
        ask = Question(lambda _: 0, self._look, lambda _: settle(self._looked))
        self._host.orders.submit([(given.sent, ask)])
        self._host.orders.execute_submitted()

    def _look(self, shard: Shard) -> None:
        if self._closed:
            return
        state = shard.views()
        nbytes = state.nbytes + shard.tables.saved_bytes
        self._refusal = self._host.memory.take(nbytes) or ""
        if not self._refusal:
            self._state, self._nbytes, self._held = state, nbytes, True
            self._rows = shard.tables.snapshot()
            self._host.orders.hold_writes()

    async def copy(self, *, near: bool) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return what there is to know about the shard, and its arrays; nothing if there is none.

        `near`: the other server can read what lies in shared memory: arrays that do are not returned, but their places
        are among what there is to know, until `close`. Raises CopyError if memory has no room.
        """
        await self._looked
        if self._refusal:
            raise CopyError(self._refusal)
        state, saved, shard = self._state, self._rows, self._shard
        if state is None or saved is None or shard is None:
            return {}, {}

        def copy() -> tuple[ShardState, Lent, bytes]:
            lent = Lent(state.arrays.values() if near else ())
            return copied(state, lent.room), lent, digest_of(shard, shard.version)

        small, beside = self._nbytes <= LARGE_PASS, self._host.runtime.passes.on_pool
        try:
            made, lent, digest = copy() if small else await beside(copy)
        finally:
            self._release()
        rows = saved.copy() if small else await beside(saved.copy)
        self._drop()
        self._lent = lent
        places, arrays = lent.divided(made.arrays)
        return {"shard": made.to_json(), "digest": digest.hex(), "lent": places}, {**arrays, **rows}

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._host.orders.copied()

    def _drop(self) -> None:
        if self._rows is not None and self._shard is not None:
            self._shard.tables.drop(self._rows)
            self._rows = None

    def close(self) -> None:
        self._closed = True
        self._release()
        self._drop()
        self._lent = None
        self._host.memory.give(self._nbytes)
        self._nbytes = 0


class Giving:
    """The copy that this server gives to another one. The loop's thread owns it.

    `settings`: what must be the same on all servers. `refused`: called with the learner if there can be no copy now.
    `takes`: returns whether a server has still to take up the copy that it was given.
    """

    def __init__(
        self,
        links: Mapping[int, ServerLink],
        settings: str,
        refused: Callable[[int], object],
        takes: Callable[[int], bool],
    ) -> None:
        self._links, self._settings, self._refused, self._takes = links, settings, refused, takes
        # Who is to get a copy; and who gets one.
        self._wanted: int | None = None
        self._to: int | None = None
        self._task: asyncio.Task[None] | None = None
        # The last reason against a copy, which is not repeated.
        self._said = ""

    def want(self, to: int) -> None:
        """Begin a copy for that server at the next `begin`, in place of one under way."""
        self.stop(to)
        self._wanted = to

    def stop(self, to: int) -> None:
        """End the copy that is under way to that server."""
        if self._wanted == to:
            self._wanted = None
        if self._to == to and self._task is not None:
            self._task.cancel()

    def stop_all(self) -> None:
        """End the copy that is wanted, and the one that is under way."""
        for to in (self._wanted, self._to):
            if to is not None:
                self.stop(to)

    @property
    def waits(self) -> bool:
        """Whether a copy is wanted, and none is under way."""
        return self._wanted is not None and (self._task is None or self._task.done())

    def begin(self, given: Given, at: int, epoch: int) -> None:
        """Begin the copy that is wanted. Call it between two items, when the first `at` of them are executed and
        nothing else is taken."""
        to = self._wanted
        assert to is not None
        self._wanted, self._to = None, to
        try:
            about = {"settings": self._settings, **given.about()}
        except StateError as error:
            self._refuse(to, str(error))
            return
        capture = Capture(given)
        self._task = asyncio.ensure_future(self._give(to, at, epoch, about, given, capture))

        def ended(task: "asyncio.Task[None]") -> None:
            capture.close()
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._refuse(to, str(error))

        self._task.add_done_callback(ended)

    def _refuse(self, to: int, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            fields = event("copy_refused", server=to)
            log.error(
                "server %d gets no copy, so one more loss would end the job: %s", to, reason, extra=fields
            )
        self._refused(to)

    async def _give(
        self, to: int, at: int, epoch: int, about: dict[str, Any], given: Given, capture: Capture
    ) -> None:
        link, rate, began = self._links[to], CopyRate(RATE, running.now()), running.now()
        shard, arrays = await capture.copy(near=link.reads)
        await given.host.runtime.passes.on_pool(given.sync)
        nbytes = sum(nbytes for *_, nbytes in shard.get("lent", {}).values())
        for piece in WholeCopy(at, {**about, **shard}, arrays).pieces(epoch):
            await asyncio.sleep(rate.send(len(piece.data), running.now()))
            if not await link.carry(shard_pb2.ReplicatePart(copy=piece)):
                return
            nbytes += len(piece.data)
        while self._takes(to):
            # What it reads here must last until then.
            await asyncio.sleep(LOOK)
        took = running.now() - began
        fields = event("copy_given", server=to, bytes=nbytes, seconds=took)
        log.info("server %d was given a copy: %d bytes in %.1f s", to, nbytes, took, extra=fields)
