"""The coordinator's messages to a shard: its model, and the decisions in their order."""

import asyncio
import hmac
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import takewhile

from psserver.checkpoint import CheckpointError, Store, nbytes_for, needed_by, part_of, restore_bytes
from psserver.facts import to_wire
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.order_messages import ORDERS
from psserver.policies.declarations import from_config
from psserver.records import StateError
from psserver.service.errors import exhausted, invalid, precondition
from psserver.service.net.status import memory_to_wire
from psserver.service.store.host import ShardHost
from psserver.service.store.shard_part import Part
from psserver.service.store.slow import mib_of, said
from psserver.shard import Order, ShardState, VersionMade
from pswire.logs.events import event
from pswire.messages import specs_from_wire
from pswire.model.plan import Plan, PlanError, make_plan
from pswire.model.tables import tables_from_text
from pswire.transport.wire import deltas_numbered
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Seconds between two reports of progress while a long order is executed.
TELL_EVERY = 1.0
# Seconds after which versions are told about although more orders follow: fewer reports cost less.
TELL_SOON = 0.02
# Facts about versions that are kept in case that their report is lost: more than one message of orders leads to.
FACTS = 2048
# Seconds between two reports of memory.
MEMORY_EVERY = 0.5


class Execution:
    """Executes what the coordinator tells one of `servers` shards. The loop's thread owns it.

    `next_entry`: the number of the log entry that follows those taken.
    """

    def __init__(self, host: ShardHost, servers: int) -> None:
        self._host, self._servers = host, servers
        self.next_entry = 0
        # The newest facts about versions, and the newest version that replies told about.
        self._facts = deque[VersionMade](maxlen=FACTS)
        self._told = -1
        # How many bytes of its checkpoint it has read, of how many; 0 of 0: it reads none.
        self._reading: Callable[[], tuple[int, int]] = lambda: (0, 0)
        # When memory was last reported.
        self._memory_reported_at = 0.0

    async def take(self, request: shard_pb2.FollowRequest, tell: Callable[[], Awaitable[None]]) -> None:
        """Take a model or decisions, and return when that is done. `tell`: reports progress meanwhile. Raises
        Refused."""
        match request.WhichOneof("message"):
            case "configure":
                await self._configure(request.configure, tell)
            case "decisions":
                await self._execute(request.decisions, tell)

    async def _execute(self, message: shard_pb2.Decisions, tell: Callable[[], Awaitable[None]]) -> None:
        host = self._host
        if host.state.failure is not None:
            # The coordinator knows of the failure and decides how this ends.
            return
        if not message.decisions:
            # The coordinator asks.
            self._memory_reported_at = 0.0
            return
        orders = [(each.index, _order(each)) for each in message.decisions]
        # The shard may still execute those before: their stream broke, and this one is another.
        if orders[0][0] != self.next_entry:
            raise invalid(f"expected entry {self.next_entry} of the decision log next, got {orders[0][0]}")
        host.orders.submit(orders)
        self.next_entry = orders[-1][0] + 1
        told_at = self._host.runtime.now()
        while not await host.execute(self.next_entry, TELL_SOON):
            # A long order, or versions whose commits wait for a word about them.
            if self._untold or self._host.runtime.now() - told_at >= TELL_EVERY:
                await tell()
                told_at = self._host.runtime.now()

    async def _configure(self, message: shard_pb2.Configure, tell: Callable[[], Awaitable[None]]) -> None:
        try:
            tables = tables_from_text(message.tables)
            plan = make_plan(specs_from_wire(message.variables), self._servers, tables)
            optimizer = build_optimizer(json.loads(message.optimizer))
            tensors = from_config(json.loads(message.tensors))
            deltas = deltas_numbered(message.deltas)
        except (PlanError, OptimizerError, ValueError, TypeError) as error:
            raise invalid(f"cannot configure server {self._host.server}: {error}") from error
        if not hmac.compare_digest(plan.fingerprint, message.plan):
            raise precondition(
                f"the coordinator's plan is {message.plan}, ours for the same variables is {plan.fingerprint}: "
                "run the same version of ps-server everywhere"
            )
        try:
            self._host.configure(plan, optimizer, tensors, deltas)
            self._host.orders.executed = self.tell
        except MemoryError as error:
            raise exhausted(
                f"server {self._host.server} has no memory for its part of the model, "
                f"{plan.shards[self._host.server].nbytes} bytes",
            ) from error
        await self._ready(tell)
        if self._host.state.over:
            # The next report says why.
            return
        if message.checkpoint:
            await self._take_up(message, plan, tell)
            await self._ready(tell)
        fields = event("shard_ready", bytes=self._host.nbytes, variables=len(plan.variables))
        log.info("holds %d bytes of %d variables", self._host.nbytes, len(plan.variables), extra=fields)

    async def _ready(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Wait until the shard can execute, or is over, and report meanwhile."""
        while not await self._host.state.wait_ready(TELL_EVERY):
            await tell()

    async def _take_up(
        self, message: shard_pb2.Configure, plan: Plan, tell: Callable[[], Awaitable[None]]
    ) -> None:
        """Restore this server's part of a checkpoint, and tell how far that is meanwhile. Raises Refused."""
        store = self._host.saver.store
        try:
            if store is None:
                raise CheckpointError(
                    "it has no folder: give every server the same --out, on a disk that all share"
                )
            state = await self._read_part(store, message.checkpoint, plan, tell)
            self._host.take_up(state, message.entries)
        except (CheckpointError, StateError) as error:
            raise precondition(
                f"server {self._host.server} cannot take up {message.checkpoint}: {error}"
            ) from error
        self.next_entry = message.entries

    async def _read_part(
        self, store: Store, name: str, plan: Plan, tell: Callable[[], Awaitable[None]]
    ) -> ShardState:
        """Read this server's part. Raises CheckpointError, also for one whose rows memory has no room for."""
        server, memory, before = self._host.server, self._host.memory, store.read
        total, rows = await self._host.runtime.beside(partial(self._sizes, store, name, plan))
        refusal = memory.take(rows)
        if refusal is not None:
            raise CheckpointError(refusal)

        def how_far() -> tuple[int, int]:
            return min(store.read - before, total), total

        self._reading = how_far
        reading = asyncio.ensure_future(
            self._host.runtime.beside(partial(part_of, store, name, plan, server))
        )
        try:
            with said(lambda: f"reading its part of {name}, {mib_of(*how_far())}"):
                while not reading.done():
                    await asyncio.wait([reading], timeout=TELL_EVERY)
                    await tell()
            return reading.result()
        finally:
            memory.give(rows)
            self._reading = lambda: (0, 0)

    def _sizes(self, store: Store, name: str, plan: Plan) -> tuple[int, int]:
        """Return the bytes to be read of a checkpoint, and those that its rows take meanwhile."""
        server, about = self._host.server, store.manifest(name)
        rows = restore_bytes(about, needed_by(server, self._servers)(about))
        return nbytes_for(store, name, plan, server), rows

    def fresh(self, request: shard_pb2.FollowRequest) -> shard_pb2.FollowRequest:
        """Return the decisions of `request` that were not taken before: a stream that broke is begun again."""
        decisions = request.decisions.decisions
        if not decisions or decisions[0].index >= self.next_entry:
            return request
        later = [each for each in decisions if each.index >= self.next_entry]
        return shard_pb2.FollowRequest(decisions=shard_pb2.Decisions(decisions=later))

    def tell(self, fact: VersionMade) -> None:
        """Have the next report tell about a version."""
        self._facts.append(fact)

    @property
    def _untold(self) -> bool:
        """Whether there is a version that no report has told about."""
        return bool(self._facts) and self._facts[-1].version > self._told

    def tell_again(self) -> None:
        """Have the next report repeat what reports told lately: they may have been lost with their stream."""
        self._told = -1
        self._memory_reported_at = 0.0

    def progress(self) -> shard_pb2.FollowReply:
        """Return how far this shard is, with what was not reported before."""
        host = self._host
        reply = shard_pb2.FollowReply(
            executed=host.state.executed,
            error=host.state.failure or "",
            bytes=host.nbytes,
        )
        reply.read, reply.to_read = self._reading()
        reply.saved.extend(map(saved_to_wire, host.saver.parts.values()))
        later = list(takewhile(lambda fact: fact.version > self._told, reversed(self._facts)))
        reply.made.extend(map(to_wire, reversed(later)))
        self._told = self._facts[-1].version if self._facts else self._told
        if self._host.runtime.now() - self._memory_reported_at >= MEMORY_EVERY:
            self._memory_reported_at = self._host.runtime.now()
            reply.memory.CopyFrom(memory_to_wire(host.memory, host.table_figures()))
        return reply


def _order(decision: shard_pb2.Decision) -> Order:
    order = ORDERS.from_wire(decision)
    if order is None:
        raise invalid(
            f"decision {decision.index}: expected one of a kind that this server knows, got another"
        )
    return order


def saved_to_wire(part: Part) -> shard_pb2.Saved:
    """Return the outcome of a part of a checkpoint as a message."""
    files = [shard_pb2.SavedFile(name=n, bytes=f.bytes, sha256=f.sha256) for n, f in part.files.items()]
    return shard_pb2.Saved(entry=part.entry, files=files, error=part.error[:1000])
