"""A ps-server: one shard, and on task 0 the coordinator too. Assembles, runs and ends it."""

import asyncio
import logging
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import grpc

from psserver.checkpoint import FolderLock, Store
from psserver.service.guard.authorization import Authorizer
from psserver.service.job.job import ServedJob
from psserver.service.life.coordinating import Coordinating, lock_folder
from psserver.service.life.following import Following
from psserver.service.life.job_loop import Continuation, end_tasks
from psserver.service.life.listeners import Listeners, name_warning, remind_daily
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.net.commits import Commits
from psserver.service.net.exchange import ExchangeRpc
from psserver.service.net.follow import FollowNobody, FollowRpc, NoReplicas
from psserver.service.net.pulls import PullRpc
from psserver.service.net.pushes import PushRpc
from psserver.service.net.registration import MethodHandlers
from psserver.service.net.services import COORDINATOR, SHARD, add_services, methods
from psserver.service.runtime import Runtime
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER as CHECKPOINTS
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event

if TYPE_CHECKING:
    from psserver.service.life.replicating import Replicating
    from psserver.service.replicas.links import Links
    from psserver.service.replicas.part import PartFollowRpc

log = logging.getLogger("ps-server")


class ResourcesError(OSError):
    """The system gives no thread or descriptor to begin with."""


def _host(settings: ServerSettings, runtime: Runtime) -> ShardHost:
    """Make the host of this server's part. With replicas two servers have a copy of each.

    Other jobs do not load what these need.
    """
    if settings.replicas == 1:
        return ShardHost(settings.task_index, settings.host, runtime)
    from psserver.service.replicas.logs import part_held
    from psserver.service.replicas.payloads import ReplicatedHost

    return ReplicatedHost(part_held(settings.task_index, settings.terms.servers) or 0, settings.host, runtime)


class Server:
    """One server. `announce(event, fields)` is called with "ready", "plan", "warning" and "stopped" as they happen.

    The thread that calls `run` runs the event loop and owns everything here (`psserver.service.net.loop`). `host`,
    `job` (None except on task 0) and `sockets` are there to be inspected. `folder`: the number of `settings.out`
    among the folders that it has had. `continuation`: what follows, once it has run.
    """

    def __init__(
        self,
        settings: ServerSettings,
        announce: Announce,
        out: Path | None = None,
        folder: int = 1,
        runtime: Runtime | None = None,
    ) -> None:
        """`out`: the folder of number 1, if that is another one. `runtime`: another one than the machine's."""
        self.settings = settings
        self.folder, self._out = folder, out or settings.out
        self.continuation = Continuation(settings.hosts, settings.recover)
        self._announce = announce
        self.runtime = runtime or Runtime()
        self.host = _host(settings, self.runtime)
        if settings.out is not None:
            self.host.saver.store = Store(settings.out / CHECKPOINTS, self.runtime.disk())
        self.watch = self.host.watch
        self.authorizer = Authorizer(settings.credentials, settings.task_index)
        self._exchange = ExchangeRpc(self.host)
        self.listeners = Listeners(settings, self.host, self._exchange.admit, self.authorizer)
        self.sockets = self._exchange.sockets = self.listeners.sockets
        # Server 0 coordinates; any other server follows.
        self._coordinating: Coordinating | None = None
        self.following: Following | None = None
        self._replicating: Replicating | None = None
        self._lock: FolderLock | None = None

    def run(self) -> ExitCode:
        """Serve until the job is over, the coordinator is gone, or a signal comes.

        Raises BindError, FolderError, ResourcesError.
        """
        try:
            loop = self.runtime.new_loop()
            self.runtime.start()
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
            self.host.close()
            self.sockets.end()
            loop.run_until_complete(end_tasks())
            self.runtime.close()
            loop.close()

    @property
    def job(self) -> ServedJob | None:
        """The job, on task 0, once it is made."""
        role = self._coordinating or self._replicating
        return None if role is None else role.job

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics, once it has run."""
        metrics = self.listeners.metrics
        return self.settings.metrics_port if metrics is None else metrics.address.port

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: end the job, then the server. Ctrl-C after that ends the process at once; a second
        SIGTERM changes nothing, because schedulers send several."""
        if self.continuation.signal is not None:
            if number == signal.SIGINT:
                raise SystemExit(128 + number)
            return
        self.continuation.signal = signal.Signals(number).name
        self.runtime.tell(self.continuation.wake.set)

    async def _run(self) -> ExitCode:
        self.runtime.begin()
        served, address = self.listeners.bind_grpc()
        hosts = list(self.settings.hosts)
        hosts[self.settings.task_index] = address
        self.continuation.hosts = tuple(hosts)
        role = self._take_role()
        self._register(served)
        self.listeners.open_data_port()
        copies = None if self._replicating is None else self._replicating.numbers
        await self.listeners.open_metrics(address.host, lambda: self.job, copies, self.authorizer)
        self.watch.start(self.runtime.loop)
        if self.job is not None:
            # Before anybody can join.
            self.job.open()
        await served.start()
        self._announce_ready(address)
        reminding = asyncio.create_task(remind_daily(self.settings.credentials, self.settings.exposure))
        try:
            code = await role.run()
            if self._replicating is not None and self._replicating.numbers().role == "leads":
                self.listeners.write_metrics()
            return code
        finally:
            reminding.cancel()
            self.host.state.close()
            await served.stop(grace=0.5 if self.continuation.again is None else 0)
            self.sockets.close()
            self.watch.close()
            if self.listeners.metrics is not None:
                self.listeners.metrics.close()

    def _take_role(self) -> "Coordinating | Following | Replicating":
        settings, host, continuation = self.settings, self.host, self.continuation
        if settings.replicas > 1:
            from psserver.service.life.replicating import Replicating
            from psserver.service.replicas.payloads import ReplicatedHost

            assert isinstance(host, ReplicatedHost)
            self._replicating = Replicating(settings, host, continuation, self._announce, self._exchange)
            return self._replicating
        if settings.task_index:
            self.following = Following(settings, host, continuation, self._announce, self._out)
            return self.following
        # First, before anything is written.
        self._lock = lock_folder(settings, self.runtime.disk())
        announce, out, folder = self._announce, self._out, self.folder
        try:
            self._coordinating = Coordinating(
                settings, host, continuation, self.listeners, announce, out, folder
            )
        except BaseException:
            if self._lock is not None:
                self._lock.withdraw()
            raise
        return self._coordinating

    def _register(self, served: grpc.aio.Server) -> None:
        services = {}
        rpc = MethodHandlers(self.watch, self.listeners.patience, self.authorizer)
        if self._coordinating is not None:
            services[COORDINATOR.full_name] = methods(COORDINATOR, rpc, self._coordinating.rpc)
        replicas: Links | NoReplicas = NoReplicas()
        follow: FollowRpc | PartFollowRpc | FollowNobody = FollowNobody()
        if self._replicating is not None:
            services[COORDINATOR.full_name] = methods(COORDINATOR, rpc, self._replicating.rpc)
            replicas, follow = self._replicating.links, self._replicating.follow
        elif self.following is not None:
            follow = self.following.rpc
        self._exchange.commits = None if self.job is None else Commits(self.job.decider, self.host)
        payloads = (PushRpc(self.host), PullRpc(self.host), self._exchange)
        services[SHARD.full_name] = methods(SHARD, rpc, *payloads, follow, replicas)
        add_services(served, services, rpc, self._serves)

    def _serves(self) -> bool:
        """Whether it is no server that may be missed: a copy that learns does not count yet."""
        learns = self._replicating is not None and self._replicating.numbers().role == "learns"
        return not self.host.state.closed and not learns

    def _announce_ready(self, address: Address) -> None:
        settings = self.settings
        sentence = name_warning(settings.credentials, address.host)
        if sentence is not None:
            log.warning("%s", sentence, extra=event("certificate_misnamed"))
        ready = {
            "address": str(address),
            "task_index": settings.task_index,
            "security": settings.security,
        }
        if self.job is not None and settings.out is not None:
            ready["out"] = str(settings.out)
            ready["job"] = self.job.terms.job
            self.job.routes.run_log.write_address(str(address), self.job.terms.job, settings.credentials)
        if self.listeners.metrics is not None:
            ready["metrics"] = str(self.listeners.metrics.address)
        self._announce("ready", ready)
