"""The method Follow on a shard server: receives the decision stream and executes it in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from psserver.checkpoint import Store
from psserver.service.errors import RequestRefused, invalid, precondition, unavailable
from psserver.service.job.next_job import numbered
from psserver.service.net.orders import Execution
from psserver.service.net.registration import Call, bounded, parsed
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER
from pswire.addresses import Address
from pswire.bounds import HEADER_BYTES
from pswire.exits import ExitCode
from pswire.generations import follows
from pswire.logs.events import event
from pswire.patience import coordinator_away
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Seconds between two looks for a coordinator whose connection broke.
LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a shard server may end. `recover`: seconds that it waits for another coordinator; 0: it ends."""

    exit_code: ExitCode
    reason: str
    recover: float = 0.0
    # Not 0: this server begins again, in its folder of that number.
    next_folder: int = 0


class FollowRpc:
    """The method Follow, for one coordinator at a time. When its stream breaks, this server waits for it to dial again;
    when that takes too long, this server's job ends too."""

    def __init__(
        self,
        host: ShardHost,
        servers: int,
        ended: Callable[[], None] = lambda: None,
        former: str = "",
        out: Path | None = None,
        coordinator: Address | None = None,
    ) -> None:
        """Follow the coordinator of `host`'s job. `ended` is called when this server may end; `ending` says why.
        `former`: the generation that this process followed before. `out`: the run folder. `coordinator`: its
        address."""
        self._former, self._out = former, out
        self._coordinator = coordinator
        # The coordinator's stream, if it stands, and the wait for it, if not. Held while an order is taken: the stream
        # before may have broken meanwhile.
        self._stream: Call | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        # The model, once it is taken.
        self._model: shard_pb2.Configure | None = None
        self._host = host
        self._servers = servers
        self._ended = ended
        self._execution = Execution(host, servers)
        # Seconds to wait for another coordinator, as the present one says.
        self._recover = 0.0
        # Set once.
        self.ending: Ending | None = None

    async def follow(self, call: Call) -> None:
        # A call that sends nothing owns nothing. The first one that opens is the coordinator.
        first = await next_request(call)
        if first is None or first.WhichOneof("message") != "open":
            raise invalid("expected a FollowRequest with open first")
        self._open(first.open, call)
        former, self._stream = self._stream, call
        if self._waiting is not None:
            # The next cut counts its own time.
            self._waiting.cancel()
        if former is not None:
            former.caller.cancel()
        self._execution.tell_again()
        try:
            await call.reply(self._execution.progress())
            while self.ending is None and (request := await next_request(call)) is not None:
                await self._take(request, call)
                await call.reply(self._execution.progress())
        except RequestRefused:
            # It cannot go on from orders with a hole.
            self._end(ExitCode.UNREACHABLE, "the coordinator (server 0) is gone", recover=self._recover)
            raise
        finally:
            if self.ending is not None:
                # The server's end cuts all calls; this one needs its status first.
                call.when_over(self._ended)
            elif self._stream is call:
                self._stream = None
                self._waiting = asyncio.create_task(self._wait_for_coordinator())

    async def _wait_for_coordinator(self) -> None:
        """Wait until the coordinator has dialled again. End this server if it does not, or no process has its port."""
        seconds = self._host.options.worker_timeout
        # Where the address is not known, nobody can ask whether a process has its port.
        address = self._coordinator if self._coordinator is not None and self._coordinator.port else None
        limit = seconds if address is None else coordinator_away(seconds)
        began = there = self._host.runtime.now()
        log.warning(
            "the connection to the coordinator (server 0) broke; waiting %g s for it to dial again",
            limit,
            extra=event("coordinator_cut_off", seconds=limit),
        )
        while self._stream is None and self.ending is None:
            if self._host.runtime.now() - began > limit or self._host.runtime.now() - there > seconds:
                self._end(ExitCode.UNREACHABLE, "the coordinator (server 0) is gone", recover=self._recover)
                self._ended()
                return
            if address is None or not await self._host.runtime.nobody_listens(address):
                there = self._host.runtime.now()
            await asyncio.sleep(LOOK_EVERY)

    def _open(self, message: shard_pb2.Open, call: Call) -> None:
        """Accept the coordinator, at most once in this server's life. Raises Refused, with nothing changed."""
        if self.ending is not None:
            raise unavailable(f"server {self._host.server} ends its job: wait")
        if message.job == self._former or follows(self._former, message.job):
            raise precondition(
                f"server {self._host.server} has followed {self._former}: expected a later generation of that job, "
                f"got {message.job}, which is over"
            )
        if follows(message.job, self._host.job):
            # What this server holds is void. It begins again, and takes the next call.
            self._end(
                ExitCode.UNREACHABLE, f"the job goes on as {message.job}", recover=message.recover_timeout
            )
            call.when_over(self._ended)
            raise unavailable(
                f"server {self._host.server} lets go of {self._host.job}: try again",
            )
        known = self._host.job and (self._host.job, self._host.secret) == (message.job, message.secret)
        if known and (message.again or self._stream is None):
            # The same coordinator: its connection broke.
            return
        if self._host.job and self._stream is None:
            raise unavailable(
                f"server {self._host.server} waits for the coordinator of job {self._host.job}, whose connection "
                "broke: wait",
            )
        if self._host.job:
            raise precondition(
                f"server {self._host.server} follows a coordinator already, that of job {self._host.job}"
            )
        if (message.task_index, message.servers) != (self._host.server, self._servers):
            raise precondition(
                f"this is server {self._host.server} of {self._servers}, but the coordinator takes it for "
                f"server {message.task_index} of {message.servers}: give all servers the same --ps-hosts"
            )
        if message.again:
            raise precondition(
                f"server {self._host.server} has started anew, and holds nothing of job {message.job}"
            )
        self._recover = message.recover_timeout
        if self._out is not None:
            self._host.saver.store = Store(
                numbered(self._out, message.folder or 1) / FOLDER, self._host.runtime.disk()
            )
        self._host.open(message.job, message.secret)
        log.info("following job %s", message.job, extra=event("following", job=message.job))

    async def _take(self, request: shard_pb2.FollowRequest, call: Call) -> None:
        match request.WhichOneof("message"):
            case "configure" | "decisions":

                async def tell() -> None:
                    await call.reply(self._execution.progress())

                async with self._turn:
                    await self._execute(request, tell)
            case "shutdown":
                end = request.shutdown
                self._end(_exit_code(end.exit_code), end.reason, next_folder=end.next_folder)
            case other:
                raise invalid(f"expected configure, decisions or shutdown, got {other}")

    async def _execute(self, request: shard_pb2.FollowRequest, tell: Callable[[], Awaitable[None]]) -> None:
        """Take a message, but for what was taken before."""
        if request.HasField("configure"):
            if request.configure != self._model:
                await self._execution.take(request, tell)
                self._model = request.configure
            return
        fresh = self._execution.fresh(request)
        if fresh is request or fresh.decisions.decisions:
            await self._execution.take(fresh, tell)

    def _end(self, code: ExitCode, reason: str, *, recover: float = 0.0, next_folder: int = 0) -> None:
        """Record why this server may end. The first reason counts: an older coordinator must not end what a newer
        one continues."""
        if self.ending is None:
            self.ending = Ending(code, reason, recover, next_folder)


class FollowNobody:
    """The method Follow on the coordinator's own server."""

    async def follow(self, call: Call) -> None:
        """Refuse the call."""
        await next_request(call)
        raise precondition(
            "server 0 hosts the coordinator and follows nobody: expected Follow at servers 1 and up"
        )


async def next_request(call: Call) -> shard_pb2.FollowRequest | None:
    """Receive a message of a coordinator; None at the end. Raises Refused."""
    message = await call.receive(None if call.spoken else HEADER_BYTES)
    return None if message is None else bounded(parsed(shard_pb2.FollowRequest, message))


def _exit_code(number: int) -> ExitCode:
    try:
        return ExitCode(number)
    except ValueError as error:
        raise invalid(f"shutdown: expected a documented exit code, got {number}") from error


class NoReplicas:
    """The method Replicate of a server without replicas."""

    async def replicate(self, call: Call) -> None:
        """Refuse the call."""
        data = await call.receive(HEADER_BYTES)
        if data is not None:
            bounded(parsed(shard_pb2.ReplicateRequest, data))
        raise precondition(
            "this server was started without --replicas: expected all servers of a job with the same options"
        )
