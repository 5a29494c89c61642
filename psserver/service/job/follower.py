"""The coordinator's side of Follow: one stream of decisions to each other server."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from psserver.checkpoint import CheckpointError, FileFacts
from psserver.facts import from_wire
from psserver.order_messages import ORDERS
from psserver.service.job.silence import NAMED_AFTER, Silence
from psserver.service.net.loop import Waiters
from psserver.service.runtime import Runtime
from psserver.service.store.shard_part import PassedOver, passed_over
from psserver.service.store.slow import mib_of
from psserver.shard import Order, VersionMade
from psserver.table_figures import TableFigures
from psserver.table_messages import table_from_wire
from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.patience import SERVER_AWAY, refused_limit
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.diagnosis import ConnectionProblem, problem_of
from pswire.security.proof import Caller, ProofError, server_named
from pswire.transport.channels import CHANNEL_OPTIONS
from pswire.transport.failures import CallEnding, may_pass, method_failed, reason
from pswire.transport.proven import check_server
from pswire.v1 import memory_pb2, shard_pb2

log = logging.getLogger("ps-server")

# Seconds between two questions to a server that executes nothing.
ASK_EVERY = 0.5
# Seconds between attempts to reach a server.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
# The method that is asked why there is no connection.
HEALTH = "/grpc.health.v1.Health/Check"
# Seconds that a server may take to read its exit code.
CLOSING = 5.0
# Why a server counts as lost: it has gone and may come back, or a lasting reason ("server", UNTRUSTED).
LOST, UNTRUSTED = "lost", "untrusted"
# Codes by which a server refuses orders of this one.
DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
# Why a stream ended, if the server ended it on purpose: dialling again would find nobody.
ENDED = ("it ended the decision stream", "it shut down")
# How often something that a server failed to give is asked for.
TRIES = 3
# Most orders of one message.
MOST_AT_ONCE = 1024


class Follower:
    """Delivery of the log to one remote shard. `state`: "connecting", "ready", "ended" or "lost".

    A connection that breaks is dialled again, for as long as `pswire.patience` allows, and goes on behind what the
    server has executed: a server whose connection breaks is not dead. What is queued while a message is being sent
    goes out as one. The loop's thread owns it.
    """

    def __init__(
        self,
        server: int,
        address: Address,
        opening: shard_pb2.Open,
        worker_timeout: float,
        runtime: Runtime,
        on_lost: Callable[[int, str, str], None],
        on_executed: Callable[[int, VersionMade], None],
        patience: float | None = None,
        credentials: Credentials = NO_TLS,
    ) -> None:
        """Make it within the running loop. `patience`: seconds that the server may take to be there; None: no
        limit."""
        self._credentials = credentials
        self._patience, self._timeout = patience, worker_timeout
        self.server, self.name = server, f"server {server}"
        # Of the server at the address.
        self._index = server
        self.address = address
        self.state = "connecting"
        self.executed = 0
        self.nbytes = 0
        # Bytes of its checkpoint that it has read, of how many, and since when it reads; None while it does not.
        self.reading: tuple[int, int, float] | None = None
        # Its memory, as last reported.
        self.memory = memory_pb2.Memory()
        # How many entries it had executed then.
        self.measured = -1
        # Outcomes of its parts of the newest checkpoints, by entry.
        self._saved: dict[int, shard_pb2.Saved] = {}
        self._asked = 0.0
        self._silence = Silence()
        # Whether it failed to execute an order; then it executes nothing more.
        self._stuck = False
        self._opening = opening
        self._on_lost = on_lost
        # Called with the server and the fact about each version that it has made.
        self._on_executed = on_executed
        # How often it has failed to give something, since it was reached.
        self._failed = 0
        self._runtime = runtime
        # Whether it was there once; since when its connection is broken; and when it was there last, and how far.
        self._met, self._broke = False, 0.0
        self._back, self._got = 0.0, 0
        # Orders that it may lack, in order; its model. Sent again on every stream.
        self._kept: deque[tuple[int, Order]] = deque()
        self._model: shard_pb2.Configure | None = None
        # Queued messages, and orders that follow them.
        self._outbox: list[shard_pb2.FollowRequest] = []
        self._orders: list[tuple[int, Order]] = []
        self._filled = asyncio.Event()
        self._changes = Waiters(runtime)
        # Whether an attempt to reach it has failed, and whether another process was at its address.
        self._missed = self._foreign = False
        self._closing = asyncio.Event()
        # Set when the server has accepted this coordinator.
        self._followed = asyncio.Event()
        self.channel = runtime.dial(address, CHANNEL_OPTIONS(worker_timeout), credentials)
        # UNTRUSTED once the server has refused this one.
        self._denied = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def missing(self) -> bool:
        """Whether it is not at its address."""
        return (self._missed or self._foreign) and self.state == "connecting"

    @property
    def _away(self) -> bool:
        """Whether nothing can be had from it: it is lost, or not there yet although it was awaited."""
        return self.state == "lost" or (self.missing and not self._met)

    @property
    def failed(self) -> bool:
        """Whether its part of the model cannot be had any more."""
        return self.state == "lost" or self._stuck

    def start(self) -> None:
        self._task = self._runtime.loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Count the server as lost if serving it failed in a way that nobody expects: nothing more is sent to it."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._closing.is_set():
            log.error(
                "the decisions for %s cannot be sent",
                self.name,
                exc_info=error,
                extra=event("follower_failed", server=self.server),
            )
            self.give_up(f"{type(error).__name__}: {error}")

    def configure(self, message: shard_pb2.Configure) -> None:
        self._model = message
        if self.state == "ready":
            self._put(shard_pb2.FollowRequest(configure=message))

    def send(self, orders: Sequence[tuple[int, Order]]) -> None:
        self._kept.extend(orders)
        if self.state == "ready":
            self._queue(orders)

    def _queue(self, orders: Sequence[tuple[int, Order]]) -> None:
        self._orders.extend(orders)
        if orders:
            self._silence.order(orders[-1][0] + 1, self._runtime.now())
        self._filled.set()

    def hold(self, entries: int) -> None:
        """Keep no orders below that number: the server has them."""
        self.executed = max(self.executed, entries)
        while self._kept and self._kept[0][0] < entries:
            self._kept.popleft()

    @property
    def tables(self) -> list[TableFigures]:
        """Figures of its tables, as last reported."""
        return [table_from_wire(table) for table in self.memory.tables]

    def ask(self) -> None:
        """Ask the server for its state, at most every `ASK_EVERY` seconds."""
        now = self._runtime.now()
        if self.state == "ready" and now - self._asked >= ASK_EVERY:
            self._asked = now
            self._put(shard_pb2.FollowRequest(decisions=shard_pb2.Decisions()))

    def silent(self, patience: float) -> tuple[str, float, float] | None:
        """Return what a connected server has to do, since when (monotonic), and for how many seconds at most; None
        if it is on time.

        The limit is `patience`, or less if the server is to come back. Call it now and then: it asks the server.
        """
        if self.state in ("ended", "lost") or self._closing.is_set():
            return None
        now = self._runtime.now()
        if self._dials_again:
            if now - self._broke < NAMED_AFTER:
                return None
            return f"{self.name} to answer: its connection broke", self._broke, SERVER_AWAY
        if self._silence.ask(now) and self.state == "ready":
            self._put(shard_pb2.FollowRequest(decisions=shard_pb2.Decisions()))
        waited = self._silence.waited()
        if self.reading is not None and waited is not None:
            done, total, since = self.reading
            return (
                f"{self.name} to read its checkpoint, {mib_of(done, total)}",
                since,
                waited[1] - since + patience,
            )
        if waited is None or now - waited[1] < NAMED_AFTER:
            return None
        if self.state == "connecting" and self._patience is not None:
            patience = min(patience, self._patience)
        return f"{self.name} to {waited[0]}", waited[1], patience

    def give_up(self, why: str) -> None:
        """Count a hung server as lost. It notices when it continues."""
        if self._task is not None:
            self._task.cancel()
        self._lose(LOST if self._met else "server", f"{self.name} at {self.address} was lost: {why}")

    def _put(self, message: shard_pb2.FollowRequest) -> None:
        self._seal()
        self._outbox.append(message)
        self._filled.set()

    def _seal(self) -> None:
        """Turn queued orders into messages."""
        for start in range(0, len(self._orders), MOST_AT_ONCE):
            request = shard_pb2.FollowRequest(decisions=shard_pb2.Decisions())
            for index, order in self._orders[start : start + MOST_AT_ONCE]:
                ORDERS.fill(request.decisions.decisions.add(index=index), order)
            self._outbox.append(request)
        self._orders.clear()

    async def saved(self, entry: int, seconds: float) -> dict[str, FileFacts]:
        """Return the files of its part of the checkpoint that this entry ordered.

        Raises CheckpointError; PassedOver if a newer one has replaced it.
        """

        def known() -> bool:
            return entry in self._saved or self._away or passed_over(entry, self._saved)

        deadline = self._runtime.now() + seconds
        while not known() and self._runtime.now() < deadline:
            # The server reports what it has written when it is asked.
            self.ask()
            await self._changes.wait_for(known, ASK_EVERY)
        saved = self._saved.get(entry)
        if saved is None and not self._away and known():
            raise PassedOver
        if saved is None:
            lost = "was lost" if self.state == "lost" else f"did not write its part within {seconds:.0f} s"
            raise CheckpointError(f"{self.name} {'is not there' if self.missing else lost}")
        if saved.error:
            raise CheckpointError(saved.error)
        return {file.name: FileFacts(file.bytes, file.sha256) for file in saved.files}

    async def wait_executed(self, count: int, seconds: float) -> bool:
        await self._changes.wait_for(lambda: self.executed >= count or self._stuck or self._away, seconds)
        return self.executed >= count

    async def again(self) -> bool:
        """Wait a moment after it failed to give something; return whether it is worth another try."""
        self._failed += 1
        await asyncio.sleep(ASK_EVERY)
        return self.state != "lost" and self._failed < TRIES

    async def wait_measured(self, count: int, seconds: float) -> bool:
        """Ask for the server's memory and wait for it, as of `count` entries or more; return whether it came."""
        if self.state == "ready":
            self._put(shard_pb2.FollowRequest(decisions=shard_pb2.Decisions()))
        await self._changes.wait_for(lambda: self.measured >= count or self._away, seconds)
        return self.measured >= count

    async def shutdown(self, exit_code: ExitCode, reason: str, next_folder: int = 0) -> None:
        """Send the server its exit code, or the folder with which it begins again, and wait until it has read that."""
        message = shard_pb2.Shutdown(reason=reason, exit_code=int(exit_code), next_folder=next_folder)
        self._put(shard_pb2.FollowRequest(shutdown=message))
        self._closing.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSING)
            self._task.cancel()
        await self.channel.close()

    async def abandon(self) -> None:
        """Release the server without a word: it notices, and waits for another coordinator."""
        self._closing.set()
        self.state = "lost"
        self._changes.notify()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.channel.close()

    @property
    def _dials_again(self) -> bool:
        """Whether it was there, and its connection is broken."""
        return self._met and self.state == "connecting"

    async def _run(self) -> None:
        """Serve until the server is asked to end, or is lost. A server that is still ending another generation is
        retried, and one whose connection breaks is dialled again."""
        self._broke = self._runtime.now()
        while await self._connect():
            stood = self._met
            lost, passing = await self._follow()
            if self._closing.is_set():
                self.state = "ended"
                self._changes.notify()
                return
            if not passing or self._denied or lost in ENDED or self._late(nobody=False):
                # What it refuses on a connection that is dialled again shows that it is another process.
                back = self.state == "connecting" and stood
                cause = self._denied or (LOST if back or passing and self._met else "server")
                self._lose(cause, f"{self.name} at {self.address} was lost: {lost}")
                return
            if self.state == "ready":
                self._break_off(lost)
            await asyncio.sleep(FIRST_PAUSE)

    def _break_off(self, why: str) -> None:
        """Note that the connection of a server that was there is broken, and is to be dialled again."""
        now = self._runtime.now()
        if self.executed > self._got or now - self._back > self._timeout:
            # Otherwise it breaks again and again, and nothing comes of it.
            self._broke = now
        self.state, self._opening.again = "connecting", True
        log.warning(
            "the connection to %s at %s broke (%s); dialling again, for %g s in all",
            *(self.name, self.address, why, SERVER_AWAY),
            extra=event("server_cut_off", server=self.server, address=str(self.address)),
        )
        self._changes.notify()

    def _lose(self, cause: str, reason: str) -> None:
        """Count the server as lost."""
        self.state = "lost"
        self._on_lost(self.server, cause, reason)
        self._changes.notify()

    def _late(self, *, nobody: bool) -> bool:
        """Whether it has been away for too long. `nobody`: no process has its port."""
        away = self._runtime.now() - self._broke
        if self._met:
            return away > (refused_limit(self._timeout) if nobody else SERVER_AWAY)
        return self._patience is not None and away > self._patience

    async def _follow(self) -> tuple[str, bool]:
        """Serve one stream to its end; return why it ended, and whether a retry may succeed."""
        caller = Caller(self._credentials.job_secret, "/pswire.v1.Shard/Follow", server_named(self._index))
        call: Any = self.channel.stream_stream(
            caller.method,
            request_serializer=caller.sealing(shard_pb2.FollowRequest.SerializeToString),
            response_deserializer=shard_pb2.FollowReply.FromString,
        )(metadata=caller.metadata)
        ending = CallEnding(call)
        self._outbox, self._orders = [], []
        self._filled.clear()
        self._followed.clear()
        sender: asyncio.Task[None] | None = None
        self._silence.began(self._runtime.now())
        try:
            await check_server(caller, call)
            sender = asyncio.create_task(self._send(call))
            while (reply := await call.read()) is not grpc.aio.EOF:
                check(reply)
                self._received(reply)
        except grpc.RpcError as raised:
            error = await ending.explained(raised)
            if error.code() in DENIED:
                self._denied = UNTRUSTED
            if error.code() != grpc.StatusCode.OK:
                return reason(error), may_pass(error) or method_failed(error)
        except BoundError as error:
            return str(error), False
        except ProofError as error:
            return self._unproven(error)
        finally:
            if sender is not None:
                sender.cancel()
            call.cancel()
        return "it ended the decision stream", True

    def _unproven(self, error: ProofError) -> tuple[str, bool]:
        """Note that another process is at its address; return why, and whether it may come back."""
        why = f"{error}: another process is there, or not all servers have the same PS_JOB_SECRET"
        if not self._foreign:
            log.warning(
                "%s at %s: %s",
                *(self.name, self.address, why),
                extra=event("server_unreachable", server=self.server, address=str(self.address), seconds=0.0),
            )
        self._foreign = True
        self._changes.notify()
        return why, self._met or self._patience is not None

    async def _connect(self) -> bool:
        """Keep trying to connect, and log servers that cannot be reached. Returns False if the job ends or patience
        is over."""
        pause = FIRST_PAUSE
        waited = 0.0
        ready = asyncio.create_task(self.channel.channel_ready())
        closing = asyncio.create_task(self._closing.wait())
        try:
            while True:
                done, _ = await asyncio.wait(
                    [ready, closing], timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    self._missed = False
                    return not self._closing.is_set()
                problem = await self._problem()
                nobody = self._met and await self._runtime.nobody_listens(self.address)
                waited, self._missed = self._runtime.now() - self._broke, True
                self._changes.notify()
                where = f"{self.name} at {self.address}"
                if problem is not None and problem.certain:
                    self._lose(UNTRUSTED, f"{self.name}: {problem.sentence}")
                    return False
                if self._late(nobody=nobody):
                    why = "nobody listens there" if nobody else "did not come back"
                    cause = LOST if self._met else "server"
                    self._lose(cause, f"{where} was lost: {why} within {waited:.0f} s")
                    return False
                log.warning(
                    "%s cannot be reached (%stried for %.1f s, still trying)",
                    *(where, f"{problem.sentence}; " if problem is not None else "", waited),
                    extra=event(
                        "server_unreachable", server=self.server, address=str(self.address), seconds=waited
                    ),
                )
                pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            ready.cancel()
            closing.cancel()

    async def _problem(self) -> ConnectionProblem | None:
        """Return what is wrong with the connection, by the failure of a call that does not wait for it."""
        try:
            await self.channel.unary_unary(HEALTH, bytes, bytes)(b"", timeout=FIRST_PAUSE)
        except grpc.RpcError as error:
            return problem_of(error, self.address, self._credentials)
        return None

    async def _send(self, call: Any) -> None:
        """Send queued messages until the last one. The receiving side reports a broken stream."""
        try:
            await call.write(shard_pb2.FollowRequest(open=self._opening))
            # Wait for acceptance: what is sent to a server that refuses is lost.
            await self._followed.wait()
            while True:
                await self._filled.wait()
                self._filled.clear()
                self._seal()
                messages, self._outbox = self._outbox, []
                for message in messages:
                    await call.write(message)
                if messages and messages[-1].HasField("shutdown"):
                    await call.done_writing()
                    return
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            log.debug("the decision stream of server %d is over: %r", self.server, error)

    def _begin(self, reply: shard_pb2.FollowReply) -> None:
        """Send all that a server may lack which has accepted this coordinator, now or again."""
        if self._model is not None:
            self._put(shard_pb2.FollowRequest(configure=self._model))
        self._queue([(index, order) for index, order in self._kept if index >= reply.executed])

    def _received(self, reply: shard_pb2.FollowReply) -> None:
        if self.state == "connecting":
            self.state, self._foreign = "ready", False
            self._followed.set()
            fields = event("server_ready", server=self.server, address=str(self.address))
            log.info("%s at %s is ready", self.name, self.address, extra=fields)
            if not self._met:
                self._broke = self._runtime.now()
            self._met, self._failed = True, 0
            self._back, self._got = self._runtime.now(), reply.executed
            self._begin(reply)
        now = self._runtime.now()
        self._silence.hear(reply.executed, now, reply.read)
        if not reply.to_read:
            self.reading = None
        else:
            self.reading = reply.read, reply.to_read, now if self.reading is None else self.reading[2]
        self.executed, self.nbytes = reply.executed, reply.bytes
        self.hold(reply.executed)
        if reply.HasField("memory"):
            self.memory, self.measured = reply.memory, reply.executed
        if reply.saved:
            self._saved = {saved.entry: saved for saved in reply.saved}
        self._changes.notify()
        for made in reply.made:
            self._on_executed(self.server, from_wire(made))
        self._stuck = bool(reply.error)
        if reply.error and not self._closing.is_set():
            self._on_lost(self.server, "server", reply.error)
