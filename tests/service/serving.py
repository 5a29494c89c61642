"""Verbs for tests of the service: a cluster of real servers in this process, and what it says of itself."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any, Literal

import grpc
import numpy as np
import pytest

from psserver.options import Options
from psserver.service.server import Server
from psserver.settings import resolve
from pswire.exits import ExitCode
from pswire.model.plan import VariableSpec
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.settings import SecurityOptions
from pswire.transport.connecting import open_channel, stub_of
from pswire.v1 import coordinator_pb2 as pb
from psworker.engine import Grant
from psworker.link import Link
from tests import patience
from tests.service.probe import Probe

PATIENCE = patience.PATIENCE
LOOK_EVERY = 0.01

VARIABLES = (
    VariableSpec("dense/kernel", (6, 4)),
    VariableSpec("dense/bias", (4,)),
    VariableSpec("mean", (3,), kind="state"),
)

# Initial values of them.
ONES = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]


def wait_until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """`true()` once it holds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        pause.wait(LOOK_EVERY)
    return found


class Served:
    """A real server on a thread of this process, on a port of the system's choice."""

    def __init__(self, options: Options, **host: Any) -> None:
        # The newest of each kind, and all.
        self.events: dict[str, Any] = {}
        self.said: list[tuple[str, Any]] = []
        self._ready = threading.Event()
        self.server = self._made(options, host)
        self.probe = Probe(self.server)
        self.code: ExitCode | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE) and self.error is None, self.error
        self.address = str(self.events["ready"]["address"])

    def _made(self, options: Options, host: dict[str, Any]) -> Any:
        settings = resolve(options, None)
        return Server(replace(settings, host=replace(settings.host, **host)), self._announce)

    def _announce(self, event: str, fields: Any) -> None:
        self.events[event] = fields
        self.said.append((event, fields))
        if event == "ready":
            self._ready.set()

    def _run(self) -> None:
        try:
            self.code = self.server.run()
        except BaseException as error:
            # Of whoever asks how it ended, not of the test that runs by then.
            self.error = error
            self._ready.set()

    def interrupt(self, number: Signals = SIGTERM) -> None:
        self.server.interrupt(number, None)

    def ended(self) -> ExitCode | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"
        if self.error is not None:
            raise self.error
        return self.code


@dataclass(frozen=True)
class Picture:
    """What must not change when something is refused."""

    version: int
    counts: tuple[int, ...]
    workers: tuple[tuple[str, int, str, int], ...]
    # Entries of the decision log that each server has executed.
    executed: tuple[int, ...]


class Cluster:
    """Servers 0 to n-1 of one job, in this process. `credentials`: with which it is asked."""

    def __init__(self, servers: list[Served], credentials: Credentials = NO_TLS) -> None:
        self.servers = servers
        self.hosts = ",".join(served.address for served in servers)
        self.channels = [open_channel(served.address, [], credentials) for served in servers]
        self.coordinator = stub_of(self.channels[0])
        self.shards = [stub_of(channel, "Shard") for channel in self.channels]

    def status(self) -> pb.StatusReply:
        return self.coordinator.Status(pb.StatusRequest(), timeout=PATIENCE)

    def picture(self) -> Picture:
        """Taken once all servers have executed the whole log."""

        def settled() -> pb.StatusReply | None:
            reply = self.status()
            executed = {s.executed for s in reply.servers}
            # Entry 0 comes with the server's own start.
            return reply if len(executed) == 1 and executed != {0} else None

        reply = wait_until(settled, "every server to execute the log")
        return Picture(
            reply.version,
            (reply.committed, reply.applied, reply.dropped, reply.pending, reply.samples),
            tuple((w.name, w.incarnation, w.state, w.ticket) for w in reply.workers),
            tuple(s.executed for s in reply.servers),
        )

    def raw(self, server: int, path: str) -> Callable[..., Any]:
        """A method of which requests and replies are bytes; streams both ways."""
        return self.channels[server].stream_stream(path, None, None)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@contextmanager
def serving(
    servers: int = 1,
    *,
    workers: int = 1,
    policy: str = "async",
    overrides: Iterable[str] = (),
    out: Path | None = None,
    shared: bool = False,
    resume: str | None = None,
    job_secret: str = "",
    log_flush: Literal["system", "disk"] = "system",
    security: Callable[[int], SecurityOptions] = lambda index: SecurityOptions(),
    credentials: Credentials = NO_TLS,
    **options: Any,
) -> Iterator[Cluster]:
    """A cluster; sgd with learning rate 1, so that weights are what a test can compute in its head.

    `out`: the run folder of server 0, and of all where it is `shared`; `resume`: from which of its checkpoints the job
    goes on. `security`: of each server; `credentials`: of who asks the cluster.
    """
    chosen = [
        f"cluster.workers={workers}",
        f"policy.name={policy}",
        "optimizer.learning_rate=1.0",
        *overrides,
    ]
    waits = {"patience": PATIENCE, "read_limit": 0.5, **options}
    addresses = ["127.0.0.1:0"] * servers
    started: list[Served] = []
    try:
        for index in reversed(range(servers)):
            plan = Options(
                ps_hosts=",".join(addresses),
                task_index=index,
                overrides=chosen,
                out=out if index == 0 or shared else None,
                resume=resume if index == 0 or shared else None,
                log_flush=log_flush,
                security=security(index),
                job_secret=job_secret,
            )
            started.insert(0, Served(plan, **waits))
            addresses[index] = started[0].address
        cluster = Cluster(started, credentials)
        yield cluster
        cluster.close()
    finally:
        for served in started:
            if served.code is None and served.error is None:
                served.interrupt()
        for served in started:
            served.ended()


@contextmanager
def refused(code: grpc.StatusCode, *words: str) -> "Iterator[pytest.ExceptionInfo[grpc.RpcError]]":
    """The RPC inside fails with `code`, and its details hold each of `words`."""
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    error = caught.value
    assert error.code() == code, f"{error.code()}: {error.details()}"
    for word in words:
        assert word in error.details(), error.details()


def granted(session: Link) -> Grant:
    """The next grant, of a job that goes on."""
    grant = session.ready()
    assert grant is not None
    return grant


def step(session: Link) -> None:
    """Compute ones for "w" under one ticket, from grant to commit."""
    grant = granted(session)
    session.pull(grant)
    session.push(grant, {"w": np.ones(4, np.float32)})
    session.commit(grant, samples=1, loss=1.0)
