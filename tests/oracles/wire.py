"""What a worker and its servers say to each other in one scripted session, message by message.

A channel of gRPC records the bytes of every message that it serialises and parses. A plain socket records what its
worker sends and receives, which is then cut into frames. Secrets come from a sequence instead of chance. `REDACTED`
names the fields that depend on the machine or the clock. Left out are the followers' replies, which come by the clock.
"""

import hashlib
import os
import secrets
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import grpc
import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pswire.model.plan import VariableSpec
from pswire.v1 import coordinator_pb2, shard_pb2
from tests.links import connect_link
from tests.oracles.frozen import Value
from tests.service.serving import Cluster, granted, serving, wait_until

# Fewer bytes than a server sends at once, however slow the machine: the next piece's size depends on the link.
VARIABLES = (
    VariableSpec("dense/kernel", (60, 40)),
    VariableSpec("dense/bias", (40,)),
    VariableSpec("mean", (5,), kind="state"),
)
REDACTED = {
    # By the clock.
    "pswire.v1.Commit.times",
    # By the machine and its processes.
    "pswire.v1.JoinRequest.process",
    "pswire.v1.JoinRequest.place",
    "pswire.v1.Attached.port",
    "pswire.v1.Segment.pid",
    "pswire.v1.Segment.fd",
    # By what the process has shared before.
    "pswire.v1.Located.segment",
    "pswire.v1.Located.live",
}
# Several of them may share a message, or have one each, as they come.
BUNDLES = {
    "pswire.v1.SessionReply.events",
    "pswire.v1.FollowRequest.decisions",
    "pswire.v1.Decisions.decisions",
}
MESSAGES = {
    method.name: (method.input_type, method.output_type)
    for file in (coordinator_pb2, shard_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# A frame of a socket: its length, and a status code.
HEAD = struct.Struct("<IB")

# (transport, servers, numbers as they travel)
SESSIONS = {
    "gRPC": ("grpc", 1, "float32"),
    "gRPC, bfloat16": ("grpc", 1, "bfloat16"),
    "gRPC, two servers": ("grpc", 2, "float32"),
    "socket": ("socket", 1, "float32"),
    "socket, float16": ("socket", 1, "float16"),
    "shared memory": ("shared-memory", 1, "float32"),
}


def sessions() -> dict[str, Value]:
    """Session -> stream -> the number of its messages, and a line for each."""
    return {name: session(*how) for name, how in SESSIONS.items()}


def session(transport: str, servers: int, dtype: str) -> Value:
    """A worker's whole session: from Join over four steps, two of them in one round trip, to the report of the end."""
    # Nothing is to happen by the clock.
    unhurried = ["cluster.worker_timeout=1000.0"]
    with heard() as streams, serving(servers, overrides=unhurried) as cluster:
        # Entry 0 goes to followers by itself: before what Join sends them, where that waits.
        wait_until(lambda: streams.followers() == servers - 1, "each follower to be sent entry 0")
        _train(cluster, transport, dtype)
    return {name: [len(lines), *lines] for name, lines in sorted(streams.lines(cluster).items())}


def _train(cluster: Cluster, transport: str, dtype: str) -> None:
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    joined = connect_link(cluster.hosts, ones, name="w0", transport=transport, wire_dtype=dtype)
    with joined as worker:
        worker.tell_extent(1, 4)
        for number in range(4):
            grant = granted(worker)
            # Exact in 16 bits, and so are the sums of its squares.
            payload = [(values + np.float32(number)) / 8 for values in worker.pull_flat(grant)]
            if number % 2:
                worker.contribute(grant, payload, samples=2, loss=0.5, batch=number, ready=number == 1)
            else:
                worker.push_flat(grant, payload)
                worker.commit(grant, samples=2, loss=0.5, batch=number)
        worker.done()
        worker.pull_final()
        worker.report({"loss": 0.25})


class Streams:
    """Messages by stream, in their order. Any thread may add some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[tuple[str, str, str], list[bytes]] = defaultdict(list)
        self._sockets: list[dict[str, bytearray]] = []

    def add(self, address: str, method: str, way: str, message: bytes) -> None:
        with self._lock:
            self._messages[address, method.rpartition("/")[2], way].append(message)

    def socket(self) -> dict[str, bytearray]:
        """What travels each way on a socket that has just connected."""
        with self._lock:
            self._sockets.append({">": bytearray(), "<": bytearray()})
            return self._sockets[-1]

    def followers(self) -> int:
        """How many servers were sent an entry of the log."""
        kind = MESSAGES["Follow"][0]
        with self._lock:
            sent = [
                said for (_, method, way), said in self._messages.items() if (method, way) == ("Follow", ">")
            ]
            return sum(len([line for each in said for line in described(each, kind)]) > 1 for said in sent)

    def lines(self, cluster: Cluster) -> dict[str, list[str]]:
        """Stream -> a line for each message: its fields, bytes and digest, without what is redacted."""
        numbers = {served.address: number for number, served in enumerate(cluster.servers)}
        found: dict[str, list[str]] = {}
        for (address, method, way), messages in self._messages.items():
            if address in numbers and not (method == "Follow" and way == "<"):
                kind = MESSAGES[method][way == "<"]
                name = f"{method} {way} server {numbers[address]}"
                found[name] = [line for message in messages for line in described(message, kind)]
        for number, ways in enumerate(self._sockets):
            for way, data in ways.items():
                kind = MESSAGES["Exchange"][way == "<"]
                first = shard_pb2.Attached if way == "<" else shard_pb2.Attach
                found[f"socket {number} {way}"] = list(framed(bytes(data), first.DESCRIPTOR, kind))
        return found


def framed(data: bytes, first: Descriptor, kind: Descriptor) -> Iterator[str]:
    """The frames of one direction. `first`: the message of the first one."""
    start = 0
    while start < len(data):
        length, code = HEAD.unpack_from(data, start)
        message = data[start + HEAD.size : start + HEAD.size + length]
        assert len(message) == length, "half a frame"
        if code or not message:
            yield f"frame, code {code}: {_summary(message)}"
        else:
            yield from (f"frame: {line}" for line in described(message, kind if start else first))
        start += HEAD.size + length


def described(message: bytes, kind: Descriptor) -> Iterator[str]:
    """The names of a message's fields, its bytes and digest; one line for each part of a bundle, and none for a bundle
    without parts, which a follower is sent by the clock."""
    found = [(kind.fields_by_number[number], value) for number, _, value in fields(message)]
    if found and all(field.full_name in BUNDLES for field, _ in found):
        for field, value in found:
            if value:
                yield from described(value, field.message_type)
        return
    names = Counter(field.name for field, _ in found)
    shown = [f"{name} x{count}" if count > 1 else name for name, count in names.items()]
    yield f"{' '.join(shown)}: {_summary(redacted(message, kind))}"


def _summary(data: bytes) -> str:
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def redacted(message: bytes, kind: Descriptor) -> bytes:
    """The message with its fields in their order, without the values of those in REDACTED."""
    out = b""
    for number, tag, value in fields(message):
        field = kind.fields_by_number[number]
        if field.full_name in REDACTED:
            out += tag
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = redacted(value, field.message_type)
            out += tag + _varint(len(inner)) + inner
        elif tag[0] & 7 == 2:
            out += tag + _varint(len(value)) + value
        else:
            out += tag + value
    return out


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(number, tag, value) of each field, in the order in which they were written."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _number(message, at)
        tag, begin = message[begin:at], at
        match key & 7:
            case 0:
                _, at = _number(message, at)
            case 1:
                at += 8
            case 2:
                length, begin = _number(message, at)
                at = begin + length
            case 5:
                at += 4
            case other:
                raise AssertionError(f"wire type {other} in {message[:40]!r}")
        assert at <= len(message), "half a field"
        yield key >> 3, tag, message[begin:at]


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


# Listening


@contextmanager
def heard() -> Iterator[Streams]:
    """What is said on channels and sockets that are made inside."""
    streams = Streams()
    with ExitStack() as stack:
        patch: Callable[..., Any] = lambda *what: stack.enter_context(mock.patch.object(*what))  # noqa: E731
        _fixed_secrets(patch)
        insecure, aio = grpc.insecure_channel, grpc.aio.insecure_channel
        patch(
            grpc,
            "insecure_channel",
            lambda where, *more, **named: _heard(insecure(where, *more, **named), where, streams),
        )
        patch(
            grpc.aio,
            "insecure_channel",
            lambda where, *more, **named: _heard(aio(where, *more, **named), where, streams),
        )
        _listen_to_sockets(patch, streams)
        yield streams


def _fixed_secrets(patch: Callable[..., Any]) -> None:
    """Those of one size are 1, 2, 3, ... in the order in which they are asked for."""
    drawn: Counter[int] = Counter()

    def token_bytes(size: int) -> bytes:
        drawn[size] += 1
        return drawn[size].to_bytes(size, "big")

    patch(secrets, "token_bytes", token_bytes)
    patch(secrets, "token_hex", lambda size: token_bytes(size).hex())


def _heard(channel: Any, address: str, streams: Streams) -> Any:
    """The same channel, whose methods tell what they serialise and parse."""

    def telling(make: Callable[..., Any]) -> Callable[..., Any]:
        def method(path: str, serialise: Any = None, parse: Any = None, *more: Any, **named: Any) -> Any:
            serialise = named.pop("request_serializer", serialise)
            parse = named.pop("response_deserializer", parse)

            def sent(request: Any) -> bytes:
                data = request if serialise is None else serialise(request)
                streams.add(address, path, ">", bytes(data))
                return data  # type: ignore[no-any-return]

            def received(data: bytes) -> Any:
                streams.add(address, path, "<", bytes(data))
                return data if parse is None else parse(data)

            return make(path, sent, received, *more, **named)

        return method

    for name in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        setattr(channel, name, telling(getattr(channel, name)))
    return channel


def _listen_to_sockets(patch: Callable[..., Any], streams: Streams) -> None:
    """A Python socket that connects is a worker's: gRPC has its own, and servers accept theirs."""
    heard: WeakKeyDictionary[socket.socket, dict[str, bytearray]] = WeakKeyDictionary()
    plain = socket.socket
    bind, connect = plain.bind, plain.connect
    sendall, recv_into, recvmsg_into = plain.sendall, plain.recv_into, plain.recvmsg_into

    def own(address: Any) -> Any:
        """With secrets that are none, the names of Unix sockets are those of every process that does this."""
        return f"{address}-{os.getpid()}" if isinstance(address, str) else address

    def binding(self: socket.socket, address: Any) -> None:
        bind(self, own(address))

    def connecting(self: socket.socket, address: Any) -> None:
        connect(self, own(address))
        heard[self] = streams.socket()

    def sending(self: socket.socket, data: Any, *flags: int) -> None:
        if self in heard:
            heard[self][">"] += data
        sendall(self, data, *flags)

    def receiving_into(self: socket.socket, buffer: Any, *size: int) -> int:
        count = recv_into(self, buffer, *size)
        if self in heard:
            heard[self]["<"] += memoryview(buffer)[:count]
        return count

    def receiving_with(self: socket.socket, buffers: Any, *sizes: int) -> Any:
        answer = recvmsg_into(self, buffers, *sizes)
        if self in heard:
            heard[self]["<"] += memoryview(buffers[0])[: answer[0]]
        return answer

    patch(plain, "bind", binding)
    patch(plain, "connect", connecting)
    patch(plain, "sendall", sending)
    patch(plain, "recv_into", receiving_into)
    patch(plain, "recvmsg_into", receiving_with)
