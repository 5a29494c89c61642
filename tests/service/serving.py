"""Verbs for tests of the service: a cluster of real servers in this process, and a foreign worker.

The foreign worker (`Peer`) knows nothing but the .proto files: it uses the
generated classes and stubs, as a client in another language would.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any, Self

import grpc
import numpy as np
import pytest

from psserver.service.server import Server
from psserver.service.shard_host import HostOptions
from psserver.settings import Options, resolve
from pswire.exits import ExitCode
from pswire.plan import Plan, VariableSpec, make_plan
from pswire.specs import specs_to_wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc, shard_pb2, shard_pb2_grpc
from pswire.v1.model_pb2 import WIRE_DTYPE_FLOAT32, Chunk

# How long anything may take before a test calls it hung, in seconds.
PATIENCE = 30.0
LOOK_EVERY = 0.01

VARIABLES = (
    VariableSpec("dense/kernel", (6, 4)),
    VariableSpec("dense/bias", (4,)),
    VariableSpec("mean", (3,), kind="state"),
)


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
        settings = resolve(options, None)
        settings = replace(settings, host=replace(settings.host, **host))
        self.events: dict[str, Any] = {}
        self._ready = threading.Event()
        self.server = Server(settings, self._announce)
        self.code: ExitCode | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        self.address = str(self.events["ready"]["address"])

    def _announce(self, event: str, fields: Any) -> None:
        self.events[event] = fields
        if event == "ready":
            self._ready.set()

    def _run(self) -> None:
        self.code = self.server.run()

    def interrupt(self) -> None:
        self.server.interrupt(SIGTERM, None)

    def ended(self) -> ExitCode | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server did not end"
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
    """Servers 0 to n-1 of one job, in this process."""

    def __init__(self, servers: Sequence[Served]) -> None:
        self.servers = servers
        self.hosts = ",".join(served.address for served in servers)
        self.channels = [grpc.insecure_channel(served.address) for served in servers]
        self.coordinator = coordinator_pb2_grpc.CoordinatorStub(self.channels[0])
        self.shards = [shard_pb2_grpc.ShardStub(channel) for channel in self.channels]

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
    host: HostOptions | None = None,
    **options: Any,
) -> Iterator[Cluster]:
    """A cluster; sgd with learning rate 1, so that weights are what a test can compute in its head."""
    chosen = [
        f"cluster.workers={workers}",
        f"policy.name={policy}",
        "optimizer.learning_rate=1.0",
        *overrides,
    ]
    waits = {"patience": 0.5, "lease": 0.5, **options}
    addresses = ["127.0.0.1:0"] * servers
    started: list[Served] = []
    try:
        for index in reversed(range(servers)):
            plan = Options(ps_hosts=",".join(addresses), task_index=index, overrides=chosen)
            started.insert(0, Served(plan, **waits))
            addresses[index] = started[0].address
        cluster = Cluster(started)
        yield cluster
        cluster.close()
    finally:
        for served in started:
            if served.code is None:
                served.interrupt()
        for served in started:
            served.ended()


class Peer:
    """A worker in generated code, one message at a time."""

    def __init__(
        self,
        cluster: Cluster,
        name: str = "",
        variables: Sequence[VariableSpec] = VARIABLES,
        *,
        dtype: int = WIRE_DTYPE_FLOAT32,
    ) -> None:
        self.cluster = cluster
        self.plan = make_plan(variables, len(cluster.servers))
        self.dtype = dtype
        self.token = f"token-{id(self):x}-{time.monotonic_ns()}"
        self.reply = cluster.coordinator.Join(
            join_request(self.plan, worker=name, session=self.token), timeout=PATIENCE
        )
        self.job, self.worker = self.reply.job, self.reply.worker
        self.grant: pb.Grant | None = None
        self.stream = Stream(cluster, self.hello())

    def hello(self) -> pb.Hello:
        return pb.Hello(
            job=self.job, worker=self.worker, incarnation=self.reply.incarnation, session=self.token
        )

    # Session

    def say(self, **message: Any) -> None:
        self.stream.say(**message)

    def hear(self, kind: str) -> Any:
        return self.stream.hear(kind)

    def ready(self) -> pb.Grant:
        """The grant that this peer holds or gets; initial values are installed on the way."""
        while self.grant is None:
            self.say(ready=pb.Ready())
            grant = self.hear("grant")
            if not grant.initialise:
                self.grant = grant
                break
            ones = [np.ones(spec.shape, np.float32) for spec in self.plan.variables]
            self.commit(grant.ticket, self.push(grant, ones))
            self.hear("disposition")
        return self.grant

    def commit(self, ticket: int, receipts: Sequence[bytes] = (), **fields: Any) -> None:
        self.say(commit=pb.Commit(ticket=ticket, receipts=receipts, samples=1, **fields))

    def settled(self) -> pb.Disposition:
        """The fate of the last commit, once it is no longer pending."""
        while (told := self.hear("disposition")).fate == pb.Disposition.FATE_PENDING:
            pass
        return told

    def step(self, value: float = 1.0) -> pb.Disposition:
        """A whole unit of work whose gradient is `value` everywhere."""
        grant = self.ready()
        values = [np.full(spec.shape, value, np.float32) for spec in self.plan.variables]
        self.commit(grant.ticket, self.push(grant, values))
        self.grant = None
        return self.settled()

    # Payloads

    def header(self, grant: pb.Grant, server: int, **changed: Any) -> shard_pb2.PushHeader:
        fields: dict[str, Any] = {
            "job": self.job,
            "worker": self.worker,
            "ticket": grant.ticket,
            "plan": self.plan.fingerprint,
            "dtype": self.dtype,
            "bytes": self.plan.shards[server].nbytes,
            "after": grant.index,
        }
        return shard_pb2.PushHeader(**{**fields, **changed})

    def push(self, grant: pb.Grant, arrays: Sequence[np.ndarray]) -> list[bytes]:
        return [
            self.send(server, messages(self.header(grant, server), flat.tobytes()))
            for server, flat in enumerate(self.plan.scatter(arrays))
        ]

    def send(self, server: int, requests: Iterable[shard_pb2.PushRequest]) -> bytes:
        return self.cluster.shards[server].Push(iter(requests), timeout=PATIENCE).receipt

    def request(self, grant: pb.Grant, **changed: Any) -> shard_pb2.PullRequest:
        fields: dict[str, Any] = {
            "job": self.job,
            "ticket": grant.ticket,
            "version": grant.version,
            "plan": self.plan.fingerprint,
            "dtype": self.dtype,
            "after": grant.index,
        }
        return shard_pb2.PullRequest(**{**fields, **changed})

    def pull_bytes(self, grant: pb.Grant, server: int, **changed: Any) -> bytes:
        data = b""
        total = None
        request = self.request(grant, **changed)
        for reply in self.cluster.shards[server].Pull(request, timeout=PATIENCE):
            total = reply.bytes if total is None else total
            assert reply.chunk.offset == len(data)
            data += reply.chunk.data
        assert total == len(data)
        return data

    def pull(self, grant: pb.Grant) -> list[np.ndarray]:
        flats = [
            np.frombuffer(self.pull_bytes(grant, server), "<f4")
            for server in range(len(self.cluster.servers))
        ]
        return self.plan.gather(flats)

    def leave(self) -> None:
        self.say(leave=pb.Leave(reason="test over"))
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Stream:
    """A session stream. `ending` is its status, once it is over."""

    def __init__(self, cluster: Cluster, hello: pb.Hello) -> None:
        self._out: queue.SimpleQueue[pb.SessionRequest | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[pb.SessionEvent | None] = queue.SimpleQueue()
        self.ending: grpc.StatusCode | None = None
        self._call = cluster.coordinator.Session(iter(self._out.get, None))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.say(hello=hello)
        self.hear("welcome")

    def _read(self) -> None:
        try:
            for reply in self._call:
                for event in reply.events:
                    self._events.put(event)
        except grpc.RpcError:
            pass
        self.ending = self._call.code()
        self._events.put(None)

    def say(self, **message: Any) -> None:
        self._out.put(pb.SessionRequest(**message))

    def hear(self, kind: str) -> Any:
        """The next event of this kind; others are skipped, but not a refusal."""
        while True:
            event = self._events.get(timeout=PATIENCE)
            assert event is not None, f"the session ended with {self.ending}, expected a {kind}"
            found = event.WhichOneof("event")
            if found == kind:
                return getattr(event, kind)
            assert found != "refusal", f"expected a {kind}, got the refusal {event.refusal.message!r}"

    def ended(self) -> grpc.StatusCode | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the session goes on"
        return self.ending

    def close(self) -> None:
        self._out.put(None)
        self.ended()


# Messages


def messages(header: shard_pb2.PushHeader, data: bytes, size: int = 0) -> Iterator[shard_pb2.PushRequest]:
    """A push in generated code, in several chunks of `size` bytes, or of what suits the payload."""
    size = size or min(max(16, len(data) // 64 * 16), 2**20)
    yield shard_pb2.PushRequest(header=header)
    for offset in range(0, len(data), size):
        yield piece(offset, data[offset : offset + size])


def piece(offset: int, data: bytes) -> shard_pb2.PushRequest:
    return shard_pb2.PushRequest(chunk=Chunk(offset=offset, data=data))


def join_request(model: Plan, **changed: Any) -> pb.JoinRequest:
    fields: dict[str, Any] = {
        "session": "token",
        "variables": specs_to_wire(model.variables),
        "plan": model.fingerprint,
        "servers": len(model.shards),
        "wire_dtype": WIRE_DTYPE_FLOAT32,
    }
    return pb.JoinRequest(**{**fields, **changed})


@contextmanager
def refused(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    """The RPC inside fails with `code`, and its details hold each of `words`."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error = caught.value
    assert error.code() == code, f"{error.code()}: {error.details()}"
    for word in words:
        assert word in error.details(), error.details()
