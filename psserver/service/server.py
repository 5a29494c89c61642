"""A ps-server: one shard, and on task 0 the coordinator too. Assembles, runs, ends."""

import logging
import secrets
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.policies import Policy
from psserver.receipts import new_secret
from psserver.service.ending import conclude
from psserver.service.followers import Follower
from psserver.service.job import Job
from psserver.service.rpc import registration as rpc
from psserver.service.rpc.coordinator import CoordinatorRpc
from psserver.service.rpc.exchange import ExchangeRpc
from psserver.service.rpc.follow import FollowRpc, follow_nobody
from psserver.service.rpc.shard import ShardRpc
from psserver.service.run_log import RunLog, make_folder
from psserver.service.shard_host import HostOptions, ShardHost
from psserver.service.transport.listening import BindError, bind_error, check_free
from psserver.service.transport.sockets import SocketListener
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.plan import Plan
from pswire.transport.channels import SERVER_OPTIONS
from pswire.transport.framed_socket import LineError
from pswire.v1 import coordinator_pb2, shard_pb2

log = logging.getLogger("ps-server")

COORDINATOR, SHARD = "pswire.v1.Coordinator", "pswire.v1.Shard"

# Threads are made as calls need them: a session keeps one, a push or pull one while it lasts.
MOST_THREADS = 1024
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


class Server:
    """`announce(event, fields)` is told "ready", "plan", "stopped" as they happen."""

    def __init__(self, settings: ServerSettings, announce: Callable[[str, Mapping[str, Any]], None]) -> None:
        self.settings = settings
        self._announce = announce
        self._host = ShardHost(settings.task_index, settings.host)
        self._follow: FollowRpc | None = None
        self._job: Job | None = None
        self._lines: SocketListener | None = None
        self._signal: str | None = None
        self._wake = threading.Event()
        self._grpc = grpc.server(
            ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="rpc"),
            options=SERVER_OPTIONS(settings.terms.worker_timeout),
        )
        self._health = health.HealthServicer()

    def run(self) -> ExitCode:
        """Serve until the job is over, the coordinator is gone, or a signal. Raises BindError, FolderError."""
        port = self._listen()
        address = Address(self.settings.hosts[self.settings.task_index].host, port)
        hosts = list(self.settings.hosts)
        hosts[self.settings.task_index] = address
        self._register(tuple(hosts))
        self._open_data_port()
        self._grpc.start()
        self._announce("ready", {"address": str(address), "task_index": self.settings.task_index})
        try:
            return self._coordinate(self._job) if self._job else self._obey()
        finally:
            self._host.close()
            self._health.enter_graceful_shutdown()
            # gRPC's own end never comes after some malformed calls (of reflection, say): do not wait for ever.
            self._grpc.stop(grace=0.5).wait(STOP_PATIENCE)
            if self._lines is not None:
                self._lines.close()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: end the job, then the server. Twice: at once."""
        if self._signal is not None:
            raise SystemExit(128 + number)
        self._signal = signal.Signals(number).name
        self._wake.set()

    # Assembly

    def _listen(self) -> int:
        wanted = self.settings.hosts[self.settings.task_index].port
        bind = Address(self.settings.bind, wanted)
        check_free(bind)
        try:
            port = self._grpc.add_insecure_port(str(bind))
        except RuntimeError as error:
            raise bind_error(bind) from error
        if port == 0:
            raise bind_error(bind)
        return port

    def _open_data_port(self) -> None:
        """One that was asked for must be had, and at once; any other is opened for the first worker that needs it."""
        if self.settings.data_port and self._lines is not None:
            try:
                self._lines.open_port()
            except LineError as error:
                raise BindError(f"--data-port: {error}; is another process using it?") from error

    def _register(self, hosts: tuple[Address, ...]) -> None:
        names = [SHARD]
        if self.settings.task_index == 0:
            self._job = self._make_job(hosts)
            coordinator = CoordinatorRpc(self._job, hosts)
            names.append(COORDINATOR)
            self._add(
                COORDINATOR,
                {
                    "Join": rpc.unary(
                        coordinator.join, coordinator_pb2.JoinRequest, coordinator_pb2.JoinReply
                    ),
                    "Session": rpc.bidirectional(
                        # A field beyond its bound costs a worker that message, not its session.
                        coordinator.session,
                        coordinator_pb2.SessionRequest,
                        coordinator_pb2.SessionReply,
                        admit=rpc.parsed,
                    ),
                    "Status": rpc.unary(
                        coordinator.status, coordinator_pb2.StatusRequest, coordinator_pb2.StatusReply
                    ),
                },
            )
        shard = ShardRpc(self._host)
        exchange = ExchangeRpc(self._host, self._job, self.settings.bind, self.settings.data_port)
        self._lines = exchange.lines
        methods = {
            "Push": rpc.stream_in(shard.push, shard_pb2.PushReply),
            "Pull": rpc.stream_out(shard.pull, shard_pb2.PullRequest),
            "Exchange": rpc.raw(exchange.exchange),
        }
        follow = follow_nobody
        if self._job is None:
            self._follow = FollowRpc(self._host, len(hosts))
            follow = self._follow.follow
        methods["Follow"] = rpc.bidirectional(follow, shard_pb2.FollowRequest, shard_pb2.FollowReply)
        self._add(SHARD, methods)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        for name in ("", *names):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        names += [health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._grpc)

    def _add(self, service: str, methods: "dict[str, rpc.Method]") -> None:
        self._grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))

    def _make_job(self, hosts: tuple[Address, ...]) -> Job:
        settings = self.settings
        if settings.out is not None:
            make_folder(settings.out)
        run_log = RunLog(settings.out)
        job = Job(settings.terms, settings.policy, settings.optimizer, self._host, run_log, self._planned)
        secret = new_secret()
        self._host.open(settings.terms.job, secret)
        for server in range(1, len(hosts)):
            opening = shard_pb2.Open(
                job=settings.terms.job, epoch=0, task_index=server, servers=len(hosts), secret=secret
            )
            timeout = settings.terms.worker_timeout
            job.followers.append(Follower(server, hosts[server], opening, timeout, self._lost))
        return job

    def _planned(self, plan: Plan) -> None:
        self._announce("plan", {"fingerprint": plan.fingerprint, "text": plan.describe()})

    def _lost(self, server: int, reason: str) -> None:
        assert self._job is not None
        log.error("%s", reason)
        self._job.stop(reason, success=False, cause="server")

    # Life

    def _coordinate(self, job: Job) -> ExitCode:
        executor = threading.Thread(target=self._host.orders.run, name="executor", daemon=True)
        executor.start()
        job.open()
        for follower in job.followers:
            follower.start()
        self._watch(job)
        code = conclude(job)
        stopped = job.stopped()
        assert stopped is not None
        for follower in job.followers:
            follower.shutdown(code, stopped.reason)
        self._announce(
            "stopped", {"reason": stopped.reason, "version": stopped.version, "exit_code": int(code)}
        )
        return code

    def _watch(self, job: Job) -> None:
        """Let time pass for the coordinator until everybody has left."""
        warn_at = self.settings.wait_warning
        while not job.over.is_set():
            self._wake.wait(TICK)
            job.tick()
            if self._host.failure is not None:
                job.stop(self._host.failure, success=False, cause="server")
            if self._signal is not None:
                job.stop(f"stopped by {self._signal}", success=False, cause=self._signal)
                job.over.wait(2.0)
                return
            warn_at = self._warn(job, warn_at)

    def _warn(self, job: Job, warn_at: float) -> float:
        """Say by itself what somebody waits for, each time a wait has doubled."""
        held = job.holdup()
        if held is None or held[0] < self.settings.wait_warning:
            return self.settings.wait_warning
        seconds, sentence = held
        if seconds < warn_at:
            return warn_at
        log.warning("%s", sentence)
        return 2 * seconds

    def _obey(self) -> ExitCode:
        assert self._follow is not None
        while not self._follow.ended.is_set() and self._signal is None:
            self._follow.ended.wait(TICK)
        if self._follow.ending is None:
            assert self._signal is not None
            return ExitCode.INTERRUPTED if self._signal == "SIGINT" else ExitCode.TERMINATED
        ending = self._follow.ending
        self._announce("stopped", {"reason": ending.reason, "exit_code": int(ending.exit_code)})
        return ending.exit_code


def new_job_name() -> str:
    """Unguessable: whoever does not know it cannot speak to the job by accident."""
    return secrets.token_hex(8)
