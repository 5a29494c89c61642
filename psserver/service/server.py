"""A ps-server: one shard, and on task 0 the coordinator too. Assembles, runs, ends."""

import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import grpc

from psserver.checkpoint import FolderLock, Store
from psserver.service.access.gate import Gate
from psserver.service.access.peers import Names
from psserver.service.access.reminders import Reminders
from psserver.service.deciding.making import Announce, make_job
from psserver.service.ending import Results
from psserver.service.job import Job
from psserver.service.job_loop import JobLoop
from psserver.service.limits.table import CALLS
from psserver.service.log.json_lines import LogError
from psserver.service.log.run_log import make_folder
from psserver.service.loop.owner import Owner
from psserver.service.rpc.coordinator import CoordinatorRpc
from psserver.service.rpc.exchange import ExchangeRpc
from psserver.service.rpc.follow import FollowRpc
from psserver.service.rpc.registration import Registration
from psserver.service.rpc.services import (
    COORDINATOR,
    SHARD,
    Health,
    add_services,
    coordinator_methods,
    shard_methods,
)
from psserver.service.rpc.shard import ShardRpc
from psserver.service.saving.going_on import AUTO
from psserver.service.saving.going_on import FOLDER as CHECKPOINTS
from psserver.service.server_settings import ServerSettings
from psserver.service.shard.host import ShardHost
from psserver.service.succession.announcing import Announcing
from psserver.service.succession.moves import Moves
from psserver.service.succession.successor import Succession, Successor
from psserver.service.transport.listening import BindError, listen
from psserver.service.transport.sockets import SocketListener
from psserver.service.transport.streams import Stream
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.patience import transfer
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import SocketError

if TYPE_CHECKING:
    from psserver.metrics.endpoint import Metrics

log = logging.getLogger("ps-server")

# Between looks of a server that waits, in seconds.
LONGEST_SLEEP = 3600.0
# Seconds that gRPC may take to let go of what has ended.
LAST_EVENTS = 0.05
# How long calls that are cancelled may take for their end.
LAST_WORDS = 0.5


class ResourcesError(OSError):
    """The system gives no thread or descriptor to begin with."""


class Server:
    """`announce(event, fields)` is called with "ready", "plan", "stopped" as they happen.

    The thread that calls `run` runs the event loop, and owns all that is here (`psserver.service.loop.owner`). A
    signal handler tells it to wake. `host`, `job` (None but on task 0) and `sockets` are there to be looked at.
    `folder`: the number of `settings.out` among those that it has had. `successor`: once it has run, what follows.
    """

    def __init__(
        self, settings: ServerSettings, announce: Announce, out: Path | None = None, folder: int = 1
    ) -> None:
        """`out`: the folder of number 1, where this is another one."""
        self.settings = settings
        self.hosts, self.moved = settings.hosts, settings.moved
        self._out, self._folder = out or settings.out, folder
        self.successor: Successor | None = None
        self._succession: Succession | None = None
        self._announce = announce
        self.owner = Owner()
        self.host = ShardHost(settings.task_index, settings.host, self.owner)
        if settings.out is not None:
            self.host.saver.store = Store(settings.out / CHECKPOINTS)
        self.job: Job | None = None
        self.watch = self.host.watch
        self.gate = Gate(settings.credentials)
        self.sockets = SocketListener(
            self._exchanged,
            self.owner,
            settings.bind,
            settings.data_port,
            self.watch,
            self._patience,
            settings.credentials.server_contexts,
        )
        self.host.memory.ledger.watch(
            lambda: self.sockets.received, lambda: self.host.held_by(self.sockets.holders(), "frames")
        )
        self._grpc: grpc.aio.Server | None = None
        self._exchange: ExchangeRpc | None = None
        self._follow: FollowRpc | None = None
        self._metrics: Metrics | None = None
        self._lock: FolderLock | None = None
        self._signal: str | None = None
        # Why the job is to go on in another server of this process, if it is, and for how many seconds that one may
        # wait for the others.
        self.again: str | None = None
        self.recover = settings.recover
        self._wake = asyncio.Event()

    def run(self) -> ExitCode:
        """Serve until the job is over, the coordinator is gone, or a signal.

        Raises BindError, FolderError, ResourcesError.
        """
        try:
            loop = asyncio.new_event_loop()
            self.host.heavy.begin()
            self.sockets.begin()
        except (OSError, RuntimeError) as error:
            raise ResourcesError(
                f"the system gives no thread or descriptor to begin with ({error}): allow this process more "
                "(ulimit -n, ulimit -u, the container's pids limit)"
            ) from error
        try:
            return loop.run_until_complete(self._run())
        finally:
            if self._lock is not None:
                self._lock.close()
            self.host.saver.close()
            self.owner.end()
            self.host.close()
            self.sockets.end()
            loop.run_until_complete(end_tasks())
            loop.close()

    async def _run(self) -> ExitCode:
        self.owner.begin()
        options = SERVER_OPTIONS(self.settings.terms.worker_timeout, liveness=self.settings.task_index == 0)
        served = self._grpc = grpc.aio.server(options=options, maximum_concurrent_rpcs=int(CALLS.value))
        port = self._listen(served)
        address = Address(self.settings.hosts[self.settings.task_index].host, port)
        hosts = list(self.settings.hosts)
        hosts[self.settings.task_index] = address
        self.hosts = tuple(hosts)
        health = await self._register(served, self.hosts)
        self._open_data_port()
        self._metrics = self._open_metrics(address.host)
        self.watch.start(self.owner.loop)
        if self.job is not None:
            # Before anybody can join.
            self.job.open()
        await served.start()
        ready = {
            "address": str(address),
            "task_index": self.settings.task_index,
            "security": self.settings.security,
        }
        if self.job is not None and self.settings.out is not None:
            ready["out"] = str(self.settings.out)
            self.job.routes.run_log.write_address(str(address))
        if self._metrics is not None:
            ready["metrics"] = str(self._metrics.address)
        self._announce("ready", ready)
        reminding = asyncio.create_task(Reminders(self.settings.credentials, self.settings.exposure).run())
        try:
            return await (self._coordinate(self.job) if self.job else self._obey())
        finally:
            reminding.cancel()
            self.host.state.close()
            await health.enter_graceful_shutdown()
            await served.stop(grace=0.5 if self.again is None else 0)
            self.sockets.close()
            self.watch.close()
            if self._metrics is not None:
                self._metrics.close()

    @property
    def folder(self) -> int:
        """The number of `settings.out` among those that it has had."""
        return self._folder

    @property
    def metrics_port(self) -> int | None:
        """Where metrics were served, once it has run."""
        return self.settings.metrics_port if self._metrics is None else self._metrics.address.port

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: end the job, then the server. Twice: at once."""
        if self._signal is not None:
            raise SystemExit(128 + number)
        self._signal = signal.Signals(number).name
        self.owner.tell(self._wake.set)

    # Assembly

    def _listen(self, served: grpc.aio.Server) -> int:
        own = self.settings.hosts[self.settings.task_index]
        return listen(served, Address(self.settings.bind, own.port), self.settings.credentials)

    def _open_data_port(self) -> None:
        """One that was asked for is opened at once, or there is no server; any other when a worker first needs it."""
        if self.settings.data_port:
            try:
                self.sockets.open_port()
            except SocketError as error:
                raise BindError(f"--data-port: {error}; is another process using it?") from error

    def _open_metrics(self, name: str) -> "Metrics | None":
        """Raises BindError. Imported here: prometheus_client is an extra, and costs a server its memory."""
        port = self.settings.metrics_port
        if port is None:
            return None
        from psserver.metrics.endpoint import Metrics

        try:
            return Metrics(
                self.settings.bind,
                port,
                {name.lower()},
                self.host,
                self.job,
                credentials=self.settings.credentials,
                gate=self.gate,
            )
        except OSError as error:
            raise BindError(f"--metrics-port {port}: {error.strerror or error}") from error

    def _write_metrics(self) -> None:
        """The last numbers: a scrape may come too late for them."""
        if self._metrics is not None and self.settings.out is not None:
            try:
                self._metrics.write(self.settings.out / "metrics.prom")
            except OSError as error:
                told = event("metrics_not_written")
                log.error("metrics.prom was not written: %s", error.strerror or error, extra=told)

    async def _register(self, served: grpc.aio.Server, hosts: tuple[Address, ...]) -> Health:
        services = {}
        credentials = self.settings.credentials
        rpc = Registration(self.watch, self._patience, self.gate)
        if self.settings.task_index == 0:
            self.job = self._make_job(hosts)
            stays = self.settings.stay
            self._succession = Succession(self.job, stays, self._out, self._folder, self._wake.set)
            names = Names(credentials.tokens.names if credentials.tokens else frozenset())
            moves = self._moves(self.job, hosts[0])
            service = CoordinatorRpc(
                self.job, hosts, moves, self.moved, self._succession, names, self.settings.security
            )
            services[COORDINATOR] = coordinator_methods(service, rpc)
        else:
            self._follow = FollowRpc(
                self.host, len(hosts), self.settings.job_secret, self._wake.set, self.settings.former
            )
        self._exchange = ExchangeRpc(self.host, self.job, self.sockets)
        services[SHARD] = shard_methods(ShardRpc(self.host), self._exchange, self._follow, rpc)
        return await add_services(served, services, rpc)

    async def _exchanged(self, stream: Stream) -> None:
        """The method Exchange, on a socket. No socket has a token before it is registered."""
        assert self._exchange is not None
        await self._exchange.exchange(stream)

    def _patience(self, nbytes: int) -> float:
        return transfer(nbytes, self.settings.terms.worker_timeout)

    def _make_job(self, hosts: tuple[Address, ...]) -> Job:
        """The folder is locked first where it has checkpoints."""
        settings = self.settings
        if settings.out is not None and settings.resume is None:
            make_folder(settings.out)
        elif settings.out is not None and settings.resume == AUTO:
            settings.out.mkdir(parents=True, exist_ok=True)
        if settings.out is not None and (settings.keep or settings.resume):
            self._lock = FolderLock(settings.out / CHECKPOINTS)
        return make_job(settings, hosts, self.host, self._announce, self._wake.set, self._begin_again)

    def _moves(self, job: Job, own: Address) -> Moves:
        recovers = bool(self.settings.recover) and job.checkpoints is not None

        def move(server: int, address: Address) -> None:
            hosts = list(self.hosts)
            hosts[server] = address
            self.hosts, self.moved = tuple(hosts), self.moved | {server}
            self._begin_again(f"server {server} came back at {address}")

        return Moves(job, own, self.settings.job_secret, recovers, move)

    def _begin_again(self, reason: str) -> None:
        self.again = reason
        self._wake.set()

    # JobLoop

    async def _coordinate(self, job: Job) -> ExitCode:
        for follower in job.routes.followers:
            follower.start()
        results = Results(job)
        life = JobLoop(
            job, self.settings.wait_warning, self._wake, lambda: self._signal, lambda: self.again is not None
        )
        await life.watch(results)
        if self.again is not None and self._signal is None:
            return await self._let_go(job)
        self.again = None
        code = await results.conclude()
        if job.checkpoints is not None:
            await job.checkpoints.finish()
        self._write_metrics()
        stopped = job.stopped()
        assert stopped is not None
        ended: dict[str, Any] = {"reason": stopped.reason, "version": stopped.version, "exit_code": int(code)}
        if self.settings.out is not None:
            ended["out"] = str(self.settings.out)
        self._announce("stopped", ended)
        assert self._succession is not None
        if not await life.stay(self._succession):
            code = ExitCode.UNREACHABLE
        self.successor = self._succession.successor
        next_folder = 0 if self.successor is None else self.successor.folder
        for follower in job.routes.followers:
            await follower.shutdown(code, stopped.reason, next_folder)
        return code

    async def _let_go(self, job: Job) -> ExitCode:
        """Of what was decided, all that is behind the newest checkpoint is void. Nobody is told of an end: workers and
        servers look for the job that goes on."""
        assert self._grpc is not None
        await self._grpc.stop(grace=0)
        for follower in job.routes.followers:
            await follower.abandon()
        if job.checkpoints is not None:
            # One that all have written is completed; any other is given up, now that no follower is there.
            await job.checkpoints.finish()
        try:
            job.routes.run_log.close()
        except LogError as error:
            log.error("%s", error, extra=event("run_folder_failed"))
            self.again = None
            return ExitCode.STORAGE
        return ExitCode.UNREACHABLE

    async def _obey(self) -> ExitCode:
        index, settings = self.settings.task_index, self.settings
        announcing = Announcing(
            self.hosts[0],
            self.hosts[index],
            *(index, len(self.hosts), settings.job_secret, settings.terms.worker_timeout),
            self.settings.credentials,
        )
        announced = asyncio.create_task(announcing.run(lambda: bool(self.host.job)))
        try:
            return await self._followed()
        finally:
            announced.cancel()

    async def _followed(self) -> ExitCode:
        assert self._follow is not None
        limit = self.owner.loop.time() + self.recover if self.settings.again else float("inf")
        while self._follow.ending is None and self._signal is None:
            left = float("inf") if self.host.job else limit - self.owner.loop.time()
            if left <= 0:
                reason = f"the coordinator (server 0) did not come back within {self.recover:g} s"
                self._announce("stopped", {"reason": reason, "exit_code": int(ExitCode.UNREACHABLE)})
                return ExitCode.UNREACHABLE
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), min(left, LONGEST_SLEEP))
            self._wake.clear()
        if self._follow.ending is None:
            assert self._signal is not None
            code = ExitCode.INTERRUPTED if self._signal == "SIGINT" else ExitCode.TERMINATED
            self._announce("stopped", {"reason": f"stopped by {self._signal}", "exit_code": int(code)})
            return code
        ending = self._follow.ending
        if ending.recover and self._signal is None:
            self.again, self.recover = ending.reason, ending.recover
            return ending.exit_code
        if ending.next_folder:
            self.successor = Successor(ending.next_folder, goes_on=False)
        self._announce("stopped", {"reason": ending.reason, "exit_code": int(ending.exit_code)})
        return ending.exit_code


async def end_tasks() -> None:
    """What still runs is cancelled, and comes to its end. Connections end in a turn of the loop of their own.

    Calls that gRPC has cancelled are given a moment: one that is cancelled again while it tells its peer so is
    reported by gRPC with a traceback.
    """
    calls = [task for task in asyncio.all_tasks() if _name(task) == "_handle_exceptions"]
    if calls:
        await asyncio.wait(calls, timeout=LAST_WORDS)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # gRPC has last events for this loop.
    await asyncio.sleep(LAST_EVENTS)


def _name(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", "")
