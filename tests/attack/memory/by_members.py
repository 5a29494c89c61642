"""Members that hold on to memory: attachments, payloads, streams, versions, names."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

import grpc

from pswire.transport import socket_handshake as handshake
from pswire.transport.channels import RECEIVED_BYTES
from pswire.transport.framed_socket import FRAME_BYTES, SocketError
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.attack.memory.http2 import STREAMS, Connection, grpc_message
from tests.attack.memory.target import Target
from tests.service.peer import Peer, messages

EXCHANGE, PULL = "/pswire.v1.Shard/Exchange", "/pswire.v1.Shard/Pull"
# For a call that is to be kept: as long as the attack lasts.
KEPT = 120.0


class Streams:
    """Open exchange streams; each has said something and keeps still."""

    def __init__(self, target: Target, stack: ExitStack) -> None:
        self._method = target.cluster.raw(0, EXCHANGE)
        self._over = Event()
        stack.callback(self._over.set)

    def open(self, *said: bytes) -> Any:
        def requests() -> Iterator[bytes]:
            yield from said
            self._over.wait(KEPT)

        return self._method(requests(), timeout=KEPT)


def attachments(target: Target) -> str:
    """One member asks for shared memory on 60 connections."""
    member, given = target.member("greedy"), 0
    target.step(member)
    name = target.offer(member).socket
    with ExitStack() as stack:
        for _ in range(60):
            with suppress(SocketError):
                line, answer = handshake.connect_unix(name, target.claim(member))
                stack.callback(line.close)
                given += not shard_pb2.Attached.FromString(answer).refusal
        most = target.shared()
    member.leave()
    return f"{given} were given, one after the other; {most / 2**20:.0f} MiB shared at the end"


def endless_pushes(target: Target) -> str:
    """40 streams push one ticket and never end."""
    member = target.member("greedy")
    grant = member.ready()
    header, first, *_ = messages(member.header(grant, 0), bytes(target.nbytes), 2**20)
    said = [shard_pb2.ExchangeRequest(push=header.header), shard_pb2.ExchangeRequest(chunk=first.chunk)]
    with ExitStack() as stack:
        streams = Streams(target, stack)
        calls = [streams.open(*(each.SerializeToString() for each in said)) for _ in range(40)]
        ended = 0
        for call in calls[:-1]:
            with suppress(grpc.RpcError):
                next(call)
            ended += call.code() is not None
        target.step()
    member.leave()
    return f"{ended} of 40 were cut"


def names_in_turn(target: Target) -> str:
    """30 names join, step and leave, one after the other: an optimizer with slots for each worker."""
    for number in range(30):
        member = target.member(f"name-{number}")
        target.step(member)
        member.leave()
    return "all stepped"


def names_at_once(target: Target) -> str:
    """30 names that stay, as far as they are let in."""
    members: list[Peer] = []
    refused = 0
    for number in range(30):
        try:
            members.append(target.member(f"name-{number}"))
            target.step(members[-1])
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            refused += 1
    for member in members:
        member.leave()
    return f"{len(members)} were let in, {refused} refused"


def half_frames(target: Target) -> str:
    """A member opens 64 data lines, and sends all but the end of the largest frame on each."""
    member, lines = target.member("greedy"), []
    target.step(member)
    port, claim = target.offer(member).port, target.claim(member)
    with ExitStack() as stack:
        for _ in range(64):
            with suppress(OSError):
                line = socket.create_connection(("127.0.0.1", port), timeout=5.0)
                stack.callback(line.close)
                line.sendall(struct.pack("<IB", len(claim), 0) + claim)
                line.sendall(struct.pack("<IB", FRAME_BYTES, 0) + bytes(FRAME_BYTES - 1))
                lines.append(line)
        target.step()
    member.leave()
    return f"{len(lines)} took all of it"


def half_messages(target: Target) -> str:
    """A member opens 200 exchange streams, and sends nearly all of the largest message on each."""
    member = target.member("greedy")
    asked = shard_pb2.ExchangeRequest(attach=shard_pb2.Attach.FromString(target.claim(member)))
    first = grpc_message(asked.SerializeToString())
    largest = grpc_message(bytes(RECEIVED_BYTES - 1024), RECEIVED_BYTES - 1000)
    sent, connections = 0, [Connection(target.address) for _ in range(-(-200 // STREAMS))]
    for connection in connections:
        opened = [connection.open(EXCHANGE) for _ in range(STREAMS)]
        for stream in opened:
            connection.say(stream, first)
        for stream in opened:
            sent += connection.say(stream, largest, 0.3)
    target.step()
    for connection in connections:
        connection.close()
    member.leave()
    return f"{sent / 2**20:.0f} MiB were taken"


def unread_versions(target: Target) -> str:
    """16 members open four pulls of each new version and read nothing, while an honest one trains."""
    members = [target.member(f"slow-{number}") for number in range(16)]
    connections = [Connection(target.address, window=0) for _ in members]
    for turn in range(8):
        for member, connection in zip(members, connections, strict=True):
            member.grant = None if turn % 2 else member.grant
            with suppress(Exception):
                request = grpc_message(member.request(member.ready()).SerializeToString())
                for _ in range(4):
                    connection.say(connection.open(PULL), request, 0.1)
        target.step()
    for connection in connections:
        connection.close()
    for member in members:
        member.stream.close()
    return f"version {target.cluster.status().version} was reached"


def unread_notices(target: Target) -> str:
    """32 members say what is refused, 5,000 times each, on sessions that they do not read."""
    members, connections = [target.member(f"mute-{number}") for number in range(32)], []
    wrong = b"".join(
        grpc_message(pb.SessionRequest(abandon=pb.Abandon(ticket=2**52 + n)).SerializeToString())
        for n in range(5000)
    )
    for member in members:
        connections.append(Connection(target.address, window=0))
        stream = connections[-1].open("/pswire.v1.Coordinator/Session")
        hello = pb.SessionRequest(hello=member.hello()).SerializeToString()
        connections[-1].say(stream, grpc_message(hello))
        connections[-1].say(stream, wrong, 2.0)
    target.step()
    for connection in connections:
        connection.close()
    return "an honest step was made meanwhile"
