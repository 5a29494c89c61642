"""A socket for payloads: who may use it, what ends it, and that a step on it is a step."""

import asyncio
import os
import socket
import struct
import threading
from contextlib import AbstractContextManager, closing, suppress

import grpc
import pytest

import psworker
from psserver.service.errors import precondition
from psserver.service.net import bulk
from psserver.service.net import sockets as served
from psserver.service.net.sockets import Serve
from psserver.service.net.streams import ServerStream
from pswire.transport import framed_socket
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FRAME_BYTES, FramedSocket, SocketError
from pswire.transport.frames import Message
from psworker.data.streams import SocketBroken, SocketStream
from tests.comparing import same
from tests.probes import SessionProbe, forget_socket, send_raw
from tests.sentences import Recorder
from tests.service.loops import CLAIM, Opened
from tests.service.loops import opened as opened_by
from tests.service.serving import PATIENCE, serving, wait_until
from tests.shm.sessions import connect, granted, step


async def echo(stream: ServerStream) -> None:
    while (message := await stream.receive()) is not None:
        if message == b"refuse":
            raise precondition("expected another word")
        if message == b"quote":
            raise precondition("got " + "x" * FRAME_BYTES)
        if message == b"fail":
            raise KeyError("nothing there")
        await stream.send((b"", message))


def listening(serve: Serve = echo) -> AbstractContextManager[Opened]:
    return opened_by(serve)


KINDS = ("unix", "tcp")


def socket_to(opened: Opened, kind: str, first: bytes = CLAIM) -> FramedSocket:
    if kind == "unix":
        return handshake.connect_unix(opened.name, first)[0]
    return handshake.connect_tcp("127.0.0.1", opened.port, first)


def stream_to(opened: Opened, kind: str = "tcp", stuck: float = PATIENCE) -> SocketStream:
    return SocketStream(socket_to(opened, kind), "server 0", stuck)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20, FRAME_BYTES])
def test_messages_of_any_size_come_whole(size: int, kind: str) -> None:
    with listening() as opened, closing(stream_to(opened, kind)) as stream:
        message = os.urandom(size)
        for _ in range(2):
            # Far more than a socket holds: the other end reads meanwhile.
            stream.send([message[: size // 3], message[size // 3 :]])
            assert same(stream.receive(), message)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_needs_a_member(kind: str, sentences: Recorder) -> None:
    with listening() as opened:
        for guess in (b"", b"guessed"):
            with pytest.raises(SocketError) as refused:
                socket_to(opened, kind, guess)
            sentences.check(refused)
        with closing(socket_to(opened, kind)) as connection:
            connection.send([b"hello"])
            assert connection.receive() == (b"hello", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_ends_with_its_membership(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker that is stopped, or whose machine is gone, nothing is kept."""
    monkeypatch.setattr(served, "LOOK_EVERY", 0.05)
    with listening() as opened, closing(socket_to(opened, kind, CLAIM + b" 1")) as connection:
        with closing(socket_to(opened, kind, CLAIM + b" 2")) as other:
            opened.end_membership(CLAIM + b" 1")
            assert connection.receive() is None
            wait_until(lambda: opened.connections == 1, "one to be forgotten")
            other.send([b"hello"])
            assert other.receive() == (b"hello", 0)


def test_a_connection_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_socket, "HANDSHAKE_TIMEOUT", 0.05)
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as silent:
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""


def test_an_unauthenticated_connection_may_not_send_much() -> None:
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as other:
        other.settimeout(PATIENCE)
        other.sendall(struct.pack("<IB", served.FIRST_BYTES + 1, 0) + bytes(17))
        # A reset, if it had not read everything.
        with suppress(ConnectionResetError):
            assert other.recv(1) == b""


def test_a_refusal_ends_the_connection_with_its_code_and_reason(sentences: Recorder) -> None:
    with listening() as opened, closing(stream_to(opened)) as stream:
        stream.send([b"refuse"])
        with pytest.raises(SocketBroken) as caught:
            stream.receive()
        sentences.check(caught)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(SocketBroken) as after:
            stream.receive()
        assert after.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_server_that_answers_nothing_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """A stopped server closes no socket, and its system acknowledges all that comes."""

    async def stuck(stream: ServerStream) -> None:
        await stream.receive()
        await asyncio.Event().wait()

    with listening(stuck) as opened, closing(stream_to(opened, stuck=0.1)) as stream:
        stream.send([b"?"])
        with pytest.raises(SocketBroken) as caught:
            stream.receive()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(SocketBroken) as caught:
            while True:
                stream.send([bytes(2 << 20)])
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert caplog.text.count("nothing of a request to server 0 has moved") == 2


def test_the_system_ends_a_connection_that_nobody_acknowledges() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as plain:
            with closing(FramedSocket(plain, dead=3.0)):
                assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
                assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


def test_the_server_knows_that_its_caller_is_gone() -> None:
    """Also while it waits for something else."""
    asked, over = threading.Event(), threading.Event()

    async def busy(stream: ServerStream) -> None:
        await stream.receive()
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    with listening(busy) as opened:
        stream = stream_to(opened)
        stream.send([b"here"])
        assert asked.wait(PATIENCE)
        assert not over.is_set()
        stream.close()
        assert over.wait(PATIENCE), "the server is to notice"
        wait_until(lambda: not opened.connections, "it to be forgotten")


def test_what_is_no_frame_ends_only_its_own_connection() -> None:
    with listening() as opened, closing(stream_to(opened)) as good:
        with closing(socket_to(opened, "unix")) as bad:
            send_raw(bad, struct.pack("<IB", FRAME_BYTES + 1, 0))
            assert bad.receive() is None
        good.send([b"still here"])
        assert good.receive() == b"still here"
        with pytest.raises(SocketBroken, match="at most"):
            good.send([bytes(FRAME_BYTES + 1)])


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as opened, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        name = opened.name
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        other.connect(f"\0{name}")
        assert other.recv(1) == b""
        with pytest.raises(SocketError, match="user 4242"):
            handshake.connect_unix(name, CLAIM)


def test_one_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "CONNECTIONS", 1)
    with listening() as opened, closing(stream_to(opened)) as first:
        first.send([b"first"])
        assert first.receive() == b"first"
        with pytest.raises(SocketError):
            stream_to(opened)


@pytest.mark.parametrize("kind", ["socket", "shared-memory"])
def test_a_session_steps_on_sockets_and_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with serving(servers=2) as cluster, connect(cluster.hosts, transport=kind) as session:
        step(session, 0)
        assert session.transport == (kind, kind)
        ways = SessionProbe(session).carriers()
        assert all(isinstance(way.stream, SocketStream) for way in ways)
        grant = granted(session)
        # Neither the socket nor what was agreed on it is there any more.
        for way in ways:
            forget_socket(way)
        monkeypatch.setattr(handshake, "connect_unix", refused)
        monkeypatch.setattr(handshake, "connect_tcp", refused)
        step(session, 1, grant=grant)
        assert set(session.transport) == {"grpc"}
        assert said(caplog) == ["WARNING"] * 2, "what was in use has failed"
        for way in ways:
            way.close()
        step(session, 2)
        assert len(said(caplog)) == 2, "what has failed is not tried again"
        assert session.done().version == 3


def refused(*_: object) -> FramedSocket:
    raise SocketError("no socket today")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The levels of the lines about what is not available."""
    return [record.levelname for record in caplog.records if "is not available with" in record.message]


def test_a_way_that_never_worked_is_tried_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ps-worker")
    monkeypatch.setattr(handshake, "connect_unix", refused)
    with serving() as cluster, connect(cluster.hosts, transport="auto") as session:
        for number in range(3):
            step(session, number)
            assert session.transport == ("socket",)
            SessionProbe(session).carriers()[0].close()
    assert said(caplog) == ["INFO"]


def test_a_connection_that_is_closed_while_it_is_made_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FramedSocket] = []
    connect_tcp = handshake.connect_tcp

    with serving() as cluster, connect(cluster.hosts, transport="socket") as session:

        def closed_meanwhile(*args: object) -> FramedSocket:
            made.append(connect_tcp(*args))  # type: ignore[arg-type]
            if len(made) == 1:
                SessionProbe(session).carriers()[0].close()
            return made[-1]

        monkeypatch.setattr(handshake, "connect_tcp", closed_meanwhile)
        step(session, 0)
        assert [each.closed for each in made] == [True, False]


def test_a_session_that_insists_on_a_socket_is_told_why_not(sentences: Recorder) -> None:
    with serving(transport="grpc") as cluster, connect(cluster.hosts, "socket") as session:
        with pytest.raises(psworker.Refused) as refused:
            session.ready()
        sentences.check(refused)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_comes_while_nobody_waits_for_it_is_kept(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning was received in bulk; the rest comes while the method does something else."""
    begun, rests, sent = threading.Event(), threading.Event(), threading.Event()
    first, second = bytes(2 << 20), os.urandom(framed_socket.LARGE + 1000)
    taken: list[int] = []
    got: list[bytes | None] = []
    usual = bulk.REST
    # However long this process is kept from sending, the first frame is received in one turn.
    monkeypatch.setattr(bulk, "REST", int(PATIENCE * 1000))
    monkeypatch.setattr(bulk, "TURN", PATIENCE)

    def take(frame: Message) -> bool:
        taken.append(len(frame))
        # What is there of the second is received; its rest makes the thread wait no longer than usual.
        monkeypatch.setattr(bulk, "REST", usual)
        return begun.wait(PATIENCE)

    async def busy(stream: ServerStream) -> None:
        await stream.receive()
        await stream.receive_many(take)
        rests.set()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sent.wait, PATIENCE)
        for _ in range(5):
            # Turns of the loop, which sees what has come.
            await loop.run_in_executor(None, int)
        message = await stream.receive()
        got.append(None if message is None else bytes(message))
        await stream.send([b"taken"])
        await stream.receive()

    with listening(busy) as opened, closing(stream_to(opened, kind)) as stream:
        whole = framed_socket.HEAD.pack(len(second), 0) + second
        stream.send([b"begin"])
        send_raw(stream.connection, framed_socket.HEAD.pack(len(first), 0) + first)
        # From here on so little that the sockets hold it.
        send_raw(stream.connection, whole[:20_000])
        begun.set()
        assert rests.wait(PATIENCE)
        send_raw(stream.connection, whole[20_000:])
        sent.set()
        assert stream.receive() == b"taken"
        assert same(got, [second]) and taken == [len(first)]
