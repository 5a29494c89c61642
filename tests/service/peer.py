"""A foreign worker, and the messages that it sends.

It knows nothing but the .proto files: it uses the generated classes and
stubs, as a client in another language would.
"""

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import grpc
import numpy as np

from pswire.messages import specs_to_wire
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from pswire.v1.model_pb2 import WIRE_DTYPE_FLOAT32
from tests.service.serving import PATIENCE, VARIABLES, Cluster


class Peer:
    """A worker in generated code, one message at a time."""

    def __init__(
        self,
        cluster: Cluster,
        name: str = "",
        variables: Sequence[VariableSpec] = VARIABLES,
        *,
        dtype: int = WIRE_DTYPE_FLOAT32,
        **join: str,
    ) -> None:
        """`join`: further fields of its Join."""
        self.cluster = cluster
        self.plan = make_plan(variables, len(cluster.servers))
        self.dtype = dtype
        self.token = f"token-{id(self):x}-{time.monotonic_ns()}"
        self.reply = cluster.coordinator.Join(
            join_request(self.plan, worker=name, session=self.token, **join), timeout=PATIENCE
        )
        self.job, self.worker = self.reply.job, self.reply.worker
        self.grant: pb.Grant | None = None
        self.stream = Stream(cluster, self.hello())

    def hello(self) -> pb.Hello:
        return pb.Hello(
            job=self.job, worker=self.worker, incarnation=self.reply.incarnation, session=self.token
        )

    # Session

    def send(self, **message: Any) -> None:
        self.stream.send(**message)

    def receive(self, kind: str) -> Any:
        return self.stream.receive(kind)

    def ready(self) -> pb.Grant:
        """The grant that this peer holds or gets; initial values are installed on the way."""
        while self.grant is None:
            self.send(ready=pb.Ready())
            grant = self.receive("grant")
            if not grant.initialise:
                self.grant = grant
                break
            ones = [np.ones(spec.shape, np.float32) for spec in self.plan.variables]
            self.commit(grant.ticket, self.push(grant, ones))
            self.receive("disposition")
        return self.grant

    def commit(self, ticket: int, receipts: Sequence[bytes] = (), **fields: Any) -> None:
        """Commit what the servers hold; what follows is received as if the session had told it."""
        commit = pb.Commit(**{"ticket": ticket, "receipts": receipts, "samples": 1, **fields})
        request = pb.CommitRequest(hello=self.hello(), commit=commit)
        self.stream.hear(self.cluster.coordinator.Commit(request, timeout=PATIENCE).events)

    def settled(self) -> pb.Disposition:
        """The fate of the last commit, once it is no longer pending."""
        while (told := self.receive("disposition")).fate == pb.Disposition.FATE_PENDING:
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

    def proof(self) -> dict[str, Any]:
        """Of its membership."""
        return {
            "incarnation": self.reply.incarnation,
            "membership_token": self.reply.membership_token,
        }

    def header(self, grant: pb.Grant, server: int, **changed: Any) -> shard_pb2.PushHeader:
        fields: dict[str, Any] = {
            "job": self.job,
            "worker": self.worker,
            "ticket": grant.ticket,
            "plan": self.plan.fingerprint,
            "dtype": self.dtype,
            "bytes": self.plan.shards[server].nbytes,
            "after": grant.index,
            **self.proof(),
        }
        return shard_pb2.PushHeader(**{**fields, **changed})

    def push(self, grant: pb.Grant, arrays: Sequence[np.ndarray]) -> list[bytes]:
        return [
            self.push_messages(server, messages(self.header(grant, server), flat.tobytes()))
            for server, flat in enumerate(self.plan.scatter(arrays))
        ]

    def push_messages(self, server: int, requests: Iterable[shard_pb2.PushRequest]) -> bytes:
        return self.cluster.shards[server].Push(iter(requests), timeout=PATIENCE).receipt

    def request(self, grant: pb.Grant, **changed: Any) -> shard_pb2.PullRequest:
        fields: dict[str, Any] = {
            "job": self.job,
            "ticket": grant.ticket,
            "version": grant.version,
            "plan": self.plan.fingerprint,
            "dtype": self.dtype,
            "after": grant.index,
            "worker": self.worker,
            **self.proof(),
        }
        return shard_pb2.PullRequest(**{**fields, **changed})

    def pull_bytes(self, grant: pb.Grant, server: int, **changed: Any) -> bytes:
        data = b""
        total = None
        request = self.request(grant, **changed)
        for reply in self.cluster.shards[server].Pull(request, timeout=PATIENCE):
            total = reply.bytes if total is None else total
            data += reply.chunk
        assert total == len(data)
        return data

    def pull(self, grant: pb.Grant) -> list[np.ndarray]:
        flats = [
            np.frombuffer(self.pull_bytes(grant, server), "<f4")
            for server in range(len(self.cluster.servers))
        ]
        return self.plan.gather(flats)

    def leave(self) -> None:
        self.send(leave=pb.Leave(reason="test over"))
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
        self.send(hello=hello)
        self.receive("welcome")

    def _read(self) -> None:
        try:
            for reply in self._call:
                self.hear(reply.events)
            self.ending = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.ending = error.code()
        self._events.put(None)

    def hear(self, events: Iterable[pb.SessionEvent]) -> None:
        for event in events:
            self._events.put(event)

    def send(self, **message: Any) -> None:
        self._out.put(pb.SessionRequest(**message))

    def receive(self, kind: str) -> Any:
        """The next event of this kind; others are skipped, but not a refusal."""
        while True:
            event = self._events.get(timeout=PATIENCE)
            assert event is not None, f"the session ended with {self.ending}, expected a {kind}"
            found = event.WhichOneof("event")
            if found == kind:
                return getattr(event, kind)
            assert found != "refusal", f"expected a {kind}, got the refusal {event.refusal.message!r}"
            # Nothing is granted any more.
            assert (found, kind) != ("stop", "grant"), (
                f"expected a grant, the job stopped: {event.stop.reason}"
            )

    def next(self, seconds: float = PATIENCE) -> pb.SessionEvent:
        """The next event, whatever it is."""
        event = self._events.get(timeout=seconds)
        assert event is not None, f"the session ended with {self.ending}"
        return event

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
        yield piece(data[offset : offset + size])


def piece(data: bytes) -> shard_pb2.PushRequest:
    return shard_pb2.PushRequest(chunk=data)


def join_request(model: Plan, **changed: Any) -> pb.JoinRequest:
    fields: dict[str, Any] = {
        "session": "token",
        "variables": specs_to_wire(model.variables),
        "plan": model.fingerprint,
        "servers": len(model.shards),
        "wire_dtype": WIRE_DTYPE_FLOAT32,
    }
    return pb.JoinRequest(**{**fields, **changed})
