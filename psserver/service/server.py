"""A ps-server: one shard, and on task 0 the coordinator too. Assembles, runs, ends."""

import logging
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.receipts import new_secret, opening
from psserver.service.ending import Results
from psserver.service.followers import Follower
from psserver.service.job import Job
from psserver.service.limits.pool import CallPool
from psserver.service.limits.table import CALLS
from psserver.service.limits.watch import Caller, Watch
from psserver.service.log.run_log import RunLog, make_folder
from psserver.service.rpc.coordinator import CoordinatorRpc
from psserver.service.rpc.exchange import ExchangeRpc
from psserver.service.rpc.follow import FollowRpc
from psserver.service.rpc.registration import Registration
from psserver.service.rpc.services import (
    COORDINATOR,
    SHARD,
    add_services,
    coordinator_methods,
    shard_methods,
)
from psserver.service.rpc.shard import ShardRpc
from psserver.service.shard.host import HostOptions, ShardHost
from psserver.service.transport.listening import BindError, listen
from psserver.service.transport.sockets import SocketListener
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.logs.events import event
from pswire.model.plan import Plan
from pswire.patience import transfer
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import Parts, SocketError
from pswire.transport.frames import Message
from pswire.v1 import shard_pb2

if TYPE_CHECKING:
    from psserver.metrics.endpoint import Metrics

log = logging.getLogger("ps-server")

TICK = 0.2
STOP_PATIENCE = 3.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything a server needs to know. `wait_warning`: seconds after which a wait is logged."""

    hosts: tuple[Address, ...]
    task_index: int
    bind: str
    terms: JobTerms
    policy: Policy
    # None: the first worker's.
    optimizer: Optimizer | None
    host: HostOptions
    data_port: int
    out: Path | None
    wait_warning: float
    # None: no metrics; 0: a free port.
    metrics_port: int | None = None
    # Shared by all servers of the job: a coordinator proves to a shard that it knows this. Empty: it need not.
    job_secret: bytes = b""


class Server:
    """`announce(event, fields)` is called with "ready", "plan", "stopped" as they happen.

    The thread that calls `run` owns it; a signal handler sets `_signal` and
    wakes that thread. `host`, `job` (None but on task 0) and `sockets` are
    there to be looked at; each class says which lock owns it.
    """

    def __init__(self, settings: ServerSettings, announce: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.settings = settings
        self._announce = announce
        self.host = ShardHost(settings.task_index, settings.host)
        self.job: Job | None = None
        self.watch = Watch()
        self.sockets = SocketListener(
            self._exchanged, settings.bind, settings.data_port, self.watch, self._patience
        )
        self._exchange: ExchangeRpc | None = None
        self._follow: FollowRpc | None = None
        self._metrics: Metrics | None = None
        self._signal: str | None = None
        self._wake = threading.Event()
        self._pool = CallPool()
        # gRPC's own, which take calls and give them to the pool.
        self._serving: list[threading.Thread] = []
        # Why no call is served any more: nothing that waits for a peer would ever end.
        self.deaf: str | None = None
        self._grpc = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=int(CALLS.value),
            options=SERVER_OPTIONS(settings.terms.worker_timeout, liveness=settings.task_index == 0),
        )

    def run(self) -> ExitCode:
        """Serve until the job is over, the coordinator is gone, or a signal. Raises BindError, FolderError."""
        port = self._listen()
        address = Address(self.settings.hosts[self.settings.task_index].host, port)
        hosts = list(self.settings.hosts)
        hosts[self.settings.task_index] = address
        health = self._register(tuple(hosts))
        self._open_data_port()
        self._metrics = self._open_metrics(address.host)
        self.watch.start()
        before = set(threading.enumerate())
        self._grpc.start()
        self._serving = [thread for thread in threading.enumerate() if thread not in before]
        ready = {"address": str(address), "task_index": self.settings.task_index}
        if self._metrics is not None:
            ready["metrics"] = str(self._metrics.address)
        self._announce("ready", ready)
        try:
            return self._coordinate(self.job) if self.job else self._obey()
        finally:
            self.host.close()
            health.enter_graceful_shutdown()
            # gRPC's own end never comes after some malformed calls (of reflection, say): do not wait for ever.
            self._grpc.stop(grace=0.5).wait(STOP_PATIENCE)
            self.sockets.close()
            self.watch.close()
            if self._metrics is not None:
                self._metrics.close()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: end the job, then the server. Twice: at once."""
        if self._signal is not None:
            raise SystemExit(128 + number)
        self._signal = signal.Signals(number).name
        self._wake.set()

    # Assembly

    def _listen(self) -> int:
        own = self.settings.hosts[self.settings.task_index]
        return listen(self._grpc, Address(self.settings.bind, own.port))

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
            return Metrics(self.settings.bind, port, {name.lower()}, self.host, self.job)
        except OSError as error:
            raise BindError(f"--metrics-port {port}: {error.strerror or error}") from error

    def _run_log(self) -> RunLog:
        if self.settings.metrics_port is None:
            return RunLog(self.settings.out)
        from psserver.metrics.counts import CountedRunLog

        return CountedRunLog(self.settings.out)

    def _write_metrics(self) -> None:
        """The last numbers: a scrape may come too late for them."""
        if self._metrics is not None and self.settings.out is not None:
            try:
                self._metrics.write(self.settings.out / "metrics.prom")
            except OSError as error:
                told = event("metrics_not_written")
                log.error("metrics.prom was not written: %s", error.strerror or error, extra=told)

    def _register(self, hosts: tuple[Address, ...]) -> health.HealthServicer:
        services = {}
        rpc = Registration(self.watch, self._patience)
        if self.settings.task_index == 0:
            self.job = self._make_job(hosts)
            services[COORDINATOR] = coordinator_methods(CoordinatorRpc(self.job, hosts), rpc)
        else:
            self._follow = FollowRpc(self.host, len(hosts), self.settings.job_secret)
        self._exchange = ExchangeRpc(self.host, self.job, self.sockets)
        services[SHARD] = shard_methods(ShardRpc(self.host), self._exchange, self._follow, rpc)
        return add_services(self._grpc, services)

    def _exchanged(self, messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
        """The method Exchange, on a socket. No socket has a token before it is registered."""
        assert self._exchange is not None
        return self._exchange.exchange(messages, caller)

    def _patience(self, nbytes: int) -> float:
        return transfer(nbytes, self.settings.terms.worker_timeout)

    def _deafness(self) -> str | None:
        """Why no call is served any more, found out once; None while calls are."""
        if self.deaf is None:
            dead = [thread.name for thread in self._serving if not thread.is_alive()]
            # Its traceback is on standard error.
            self.deaf = (
                "gRPC's serving thread has died: no call is answered" if dead else self._pool.deafness()
            )
            if self.deaf is not None:
                log.error("the server ends: %s", self.deaf, extra=event("server_deaf"))
        return self.deaf

    def _make_job(self, hosts: tuple[Address, ...]) -> Job:
        settings = self.settings
        if settings.out is not None:
            make_folder(settings.out)
        run_log = self._run_log()
        job = Job(settings.terms, settings.policy, settings.optimizer, self.host, run_log, self._planned)
        secret = new_secret()
        self.host.open(settings.terms.job, secret)
        for server in range(1, len(hosts)):
            message = shard_pb2.Open(
                job=settings.terms.job,
                epoch=0,
                task_index=server,
                servers=len(hosts),
                secret=secret,
                proof=opening(settings.job_secret, settings.terms.job, server, secret),
            )
            timeout = settings.terms.worker_timeout
            job.routes.followers.append(
                Follower(server, hosts[server], message, timeout, self._lost, job.tried)
            )
        return job

    def _planned(self, plan: Plan) -> None:
        self._announce("plan", {"fingerprint": plan.fingerprint, "text": plan.describe()})

    def _lost(self, server: int, cause: str, reason: str) -> None:
        assert self.job is not None
        log.error("%s", reason, extra=event("server_lost", server=server))
        self.job.stop(reason, success=False, cause=cause)

    # Life

    def _coordinate(self, job: Job) -> ExitCode:
        executor = threading.Thread(target=self.host.orders.run, name="executor", daemon=True)
        executor.start()
        job.open()
        for follower in job.routes.followers:
            follower.start()
        results = Results(job)
        self._watch(job, results)
        code = results.conclude()
        self._write_metrics()
        stopped = job.stopped()
        assert stopped is not None
        for follower in job.routes.followers:
            follower.shutdown(code, stopped.reason)
        self._announce(
            "stopped", {"reason": stopped.reason, "version": stopped.version, "exit_code": int(code)}
        )
        return code

    def _watch(self, job: Job, results: Results) -> None:
        """Let time pass for the coordinator until everybody has left."""
        warn_at = self.settings.wait_warning
        while not job.over.is_set():
            self._wake.wait(TICK)
            # As long as a link may take for what it was granted.
            for worker in self.host.orders.unread(self._patience(self.host.nbytes)):
                job.give_up(worker, "does not read the versions that it is granted")
            job.tick()
            if job.stopped() is not None:
                results.begin()
            deaf = self._deafness()
            if deaf is not None:
                job.stop(deaf, success=False, cause="deaf")
                return
            if self.host.state.failure is not None:
                cause = "diverged" if self.host.state.diverged else "server"
                job.stop(self.host.state.failure, success=False, cause=cause)
            if self._signal is not None:
                job.stop(f"stopped by {self._signal}", success=False, cause=self._signal)
                job.over.wait(2.0)
                return
            warn_at = self._warn(job, warn_at)

    def _warn(self, job: Job, warn_at: float) -> float:
        """Log what a worker waits for, unasked, each time its wait has doubled."""
        held = job.holdup()
        if held is None or held[0] < self.settings.wait_warning:
            return self.settings.wait_warning
        seconds, sentence = held
        if seconds < warn_at:
            return warn_at
        log.warning("%s", sentence, extra=event("worker_waits", seconds=seconds))
        return 2 * seconds

    def _obey(self) -> ExitCode:
        assert self._follow is not None
        while not self._follow.ended.is_set() and self._signal is None:
            self._follow.ended.wait(TICK)
            if self._deafness() is not None:
                return ExitCode.RESOURCES
        if self._follow.ending is None:
            assert self._signal is not None
            return ExitCode.INTERRUPTED if self._signal == "SIGINT" else ExitCode.TERMINATED
        ending = self._follow.ending
        self._announce("stopped", {"reason": ending.reason, "exit_code": int(ending.exit_code)})
        return ending.exit_code


def new_job_name() -> str:
    """Unguessable: a process of another job cannot be taken for one of this job."""
    return secrets.token_hex(8)
