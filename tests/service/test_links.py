"""Streams between the servers of a job with replicas: sockets, or gRPC where there are none; who is refused."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from psserver.replication import Config, SyncMember
from psserver.replication import messages as m
from psserver.replication.messages import Item, Message, merged
from psserver.service.guard.authorization import Authorizer
from psserver.service.guard.calls import Watch
from psserver.service.net.registration import Call, MethodHandlers
from psserver.service.net.sockets import SocketListener
from psserver.service.net.streams import ServerStream
from psserver.service.replicas import link as sending
from psserver.service.replicas.bodies import Bodies, Body
from psserver.service.replicas.links import VERSION, Links, LogListener
from psserver.service.runtime import Runtime
from pswire.addresses import Address
from pswire.exits import ExitCode
from pswire.security.credentials import Credentials
from pswire.security.secret import Secret
from pswire.transport.framed_socket import SocketError
from pswire.v1 import shard_pb2
from tests.patience import PATIENCE
from tests.service import loops

CONFIG = Config(4, 0, (SyncMember(0, 0), SyncMember(1, 0)), 0)
EMPTY = Address("127.0.0.1", 0)
HOSTS = tuple(Address("127.0.0.1", port) for port in (1, 2, 3))


def _nothing(*given: Any) -> None:
    pass


class End:
    """A server's links, and what came to it."""

    def __init__(self, server: int, hosts: list[Address], sockets: SocketListener | None) -> None:
        self.came: list[tuple[int, int, Message]] = []
        self.bodies: dict[Item, bytes] = {}
        self.broken: list[int] = []
        self.ended: list[tuple[int, ExitCode, str]] = []
        self.answer: Callable[[Message], None] = lambda message: None
        # The other server's streams.
        self.calls: list[Call] = []
        self.own = Bodies()
        listener = LogListener(
            self._receive,
            self._hold,
            self.broken.append,
            lambda *given: self.ended.append(given),
            _nothing,
            _nothing,
            _nothing,
        )
        self.links = Links(server, hosts, listener, 0, self.own, sockets)

    def _receive(self, sender: int, part: int, message: Message) -> None:
        self.came.append((sender, part, message))
        self.answer(message)

    def _hold(self, item: Item, body: Body) -> None:
        self.bodies[item] = bytes(body)

    async def replicate(self, call: Call) -> None:
        self.calls.append(call)
        await self.links.replicate(call)

    def send(self, to: int, message: Message, items: dict[Item, bytes]) -> None:
        for item, body in items.items():
            self.own.hold(item, body)
        self.links.send(to, message, items.items())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def _serve(stream: ServerStream) -> None:
    raise AssertionError("no worker is here")


@asynccontextmanager
async def two(
    secrets: tuple[bytes, bytes] = (b"s", b"s"), sockets: bool = True
) -> AsyncIterator[tuple[End, End]]:
    """Two servers that know each other's addresses."""
    hosts = [EMPTY, EMPTY]
    owned = [Credentials(job_secret=Secret(secret)) for secret in secrets]
    served: list[tuple[grpc.aio.Server, SocketListener, Watch]] = []
    ends: list[End] = []
    runtime = Runtime()
    runtime.begin()
    for number in range(2):
        watch = Watch()
        watch.start(runtime.loop)
        listener = SocketListener(_serve, runtime, watch=watch)
        end = End(number, list(hosts), listener if sockets else None)
        rpc = MethodHandlers(watch, lambda nbytes: PATIENCE, Authorizer(owned[number], number))
        path = "/pswire.v1.Shard/Replicate"
        server = grpc.aio.server()
        method = {"Replicate": rpc.method(path, end.replicate)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pswire.v1.Shard", method),))
        hosts[number] = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        served.append((server, listener, watch))
        ends.append(end)
    for end, credentials in zip(ends, owned, strict=True):
        end.links.hosts[:] = hosts
        end.links.start(PATIENCE, credentials)
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            await end.links.close()
        for server, listener, watch in served:
            await server.stop(0)
            listener.close()
            watch.close()
        # Connections that were cut end in turns of their own.
        for _ in range(3):
            await asyncio.sleep(0)
        for _, listener, _ in served:
            listener.end()


def up(end: End) -> bool:
    return all(link.up for link in end.links.links.values())


def appended(end: End) -> list[Item]:
    return [item for _, _, each in end.came if isinstance(each, m.Append) for item in each.items]


def connections(end: End) -> int:
    assert end.links.sockets is not None
    return len(end.links.sockets.connections)


@pytest.mark.parametrize("sockets", [True, False])
def test_messages_come_in_order_behind_their_items(sockets: bool) -> None:
    async def run() -> None:
        async with two(sockets=sockets) as (first, second):
            await until(lambda: up(first) and up(second))
            large = bytes(range(256)) * 40_000
            for number in range(1, 6):
                item = (4, number)
                append = m.Append(CONFIG, number - 1, (item,), 0)
                first.send(1, append, {item: large if number == 3 else b"small"})
            await until(lambda: len(appended(second)) == 5)
            assert second.bodies[4, 3] == large and second.bodies[4, 5] == b"small"
            assert appended(second) == [(4, number) for number in range(1, 6)]
            if sockets:
                assert connections(first) == connections(second) == 1

    loops.run(run())


def _refused(*given: Any) -> socket.socket:
    raise SocketError("no way through")


def _closed(*given: Any) -> socket.socket:
    """Connects, and the connection is closed at once."""
    end = socket.socket()
    end.close()
    return end


@pytest.mark.parametrize("connected", [_refused, _closed])
def test_without_a_connection_the_stream_carries_it(
    monkeypatch: pytest.MonkeyPatch, connected: Callable[..., socket.socket]
) -> None:
    monkeypatch.setattr(sending, "connected", connected)

    async def run() -> None:
        async with two() as (first, second):
            await until(lambda: up(first) and up(second))
            first.send(1, m.Append(CONFIG, 0, ((4, 1),), 0), {(4, 1): b"x"})
            await until(lambda: bool(second.came))
            assert second.bodies == {(4, 1): b"x"} and connections(second) == 0

    loops.run(run())


def test_a_cut_connection_is_noticed_at_both_ends_and_made_again() -> None:
    async def run() -> None:
        async with two() as (first, second):
            await until(lambda: up(first) and up(second))
            assert second.links.sockets is not None
            (connection,) = second.links.sockets.connections
            connection.cut()
            await until(lambda: first.broken == [1] and second.broken == [0])
            await until(lambda: up(first))
            first.send(1, m.Refuse(3), {})
            await until(lambda: bool(second.came))
            # The end of the former stream is no end of the new one.
            assert first.broken == [1] and second.broken == [0]

    loops.run(run())


@pytest.mark.parametrize("sockets", [True, False])
def test_what_was_said_before_a_server_ends_arrives(sockets: bool) -> None:
    """As the answer of a server that another one replaces, which cannot lead before it has that."""

    async def run() -> None:
        async with two(sockets=sockets) as (first, second):
            await until(lambda: up(first) and up(second))
            first.send(1, m.Refuse(7), {})
            await first.links.close()
            await until(lambda: bool(second.came))
            assert second.came == [(0, 0, m.Refuse(7))] and second.ended == []

    loops.run(run())


class Greeted:
    """A call in which a server greets, and ends."""

    def __init__(self, sender: int, hosts: list[Address]) -> None:
        greeting = shard_pb2.Greeting(task_index=sender, hosts=map(str, hosts), version=VERSION)
        first = shard_pb2.ReplicateRequest(parts=[shard_pb2.ReplicatePart(greeting=greeting)])
        self._said = [first.SerializeToString()]

    async def receive(self, most: int = 0) -> bytes | None:
        return self._said.pop() if self._said else None

    async def reply(self, message: shard_pb2.ReplicateReply) -> None: ...


def test_a_server_that_has_moved_is_believed_itself() -> None:
    async def run() -> None:
        links = [End(number, list(HOSTS), None).links for number in range(3)]
        moved = Address("127.0.0.2", 9)
        links[1].hosts[1] = moved
        # Server 2 has not heard of it, and greets last.
        for sender in (1, 2):
            await links[0].replicate(cast(Call, Greeted(sender, links[sender].hosts)))
        assert links[0].hosts == [HOSTS[0], moved, HOSTS[2]]
        unknown = End(0, [HOSTS[0], EMPTY, EMPTY], None).links
        await unknown.replicate(cast(Call, Greeted(2, links[2].hosts)))
        assert unknown.hosts == list(HOSTS)

    loops.run(run())


def test_servers_of_another_version_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with two() as (first, second):
            first.links.version = "0.0.1"
            # What was said before that is of no matter.
            for end in (first, second):
                await end.links.close()
                end.links.met.clear()
                end.links.start(PATIENCE, Credentials(job_secret=Secret(b"s")))
            await until(lambda: len(caplog.messages) >= 2)
            assert not first.links.met and not second.links.met
            assert (
                f"server 1 is of version {second.links.version} of the software, and server 0 of 0.0.1: "
                in (caplog.text)
            )

    loops.run(run())


def test_servers_with_another_secret_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with two(secrets=(b"s", b"t")) as (first, second):
            await until(lambda: len(caplog.messages) >= 2)
            assert not first.links.met and not second.links.met
            # Each attempt is refused for the same reason, which is said once.
            await asyncio.sleep(0)
            assert len([each for each in caplog.messages if "this job's secret" in each]) == 2

    loops.run(run())


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        (
            m.Append(CONFIG, 0, ((4, 1),), 0),
            m.Append(CONFIG, 1, ((4, 2),), 1),
            m.Append(CONFIG, 0, ((4, 1), (4, 2)), 1),
        ),
        (m.Append(CONFIG, 0, ((4, 1),), 0), m.Append(CONFIG, 2, ((4, 3),), 1), None),
        (m.Append(CONFIG, 0, (), 0), m.Append(Config(5, 0, CONFIG.members, 0), 0, (), 0), None),
        (m.Append(CONFIG, 0, ((4, 1),) * m.BATCH, 0), m.Append(CONFIG, m.BATCH, ((4, 2),), 1), None),
        (m.Held(4, 0, 1, 0), m.Held(4, 0, 2, 1), m.Held(4, 0, 2, 1)),
        (m.Held(4, 0, 2, 0), m.Held(4, 0, 1, 1), None),
        (m.Held(4, 0, 1, 0), m.Held(5, 0, 2, 1), None),
        (m.Held(4, 0, 1, 0), m.Held(4, 1, 2, 1), None),
        (m.Refuse(3), m.Refuse(4), None),
    ],
)
def test_messages_that_one_can_say(before: Message, after: Message, both: Message | None) -> None:
    assert merged(before, after) == both
