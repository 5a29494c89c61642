"""A socket beside gRPC: who may use it, what ends it, and that a step on it is a step."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import grpc
import pytest

import psworker
from psserver.service.rpc.registration import precondition
from psserver.service.transport import sockets as served
from psserver.service.transport.sockets import Caller, SocketListener
from pswire.transport import framed_socket as lines
from pswire.transport import socket_handshake as meeting
from pswire.transport.framed_socket import FRAME_BYTES, FramedSocket, LineError, Parts
from pswire.transport.frames import Message
from psworker.data.socket_exchange import LineBroken, LineStream
from tests.service.serving import PATIENCE, serving, wait_until
from tests.shm.crew import begun, connect, granted, step


class Witness:
    """A stream of gRPC as far as a line is concerned."""

    def __init__(self) -> None:
        self.over: Callable[[], object] = lambda: None

    def when_over(self, call: Callable[[], object]) -> None:
        self.over = call


def echo(messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
    for message in messages:
        if message == b"refuse":
            raise precondition("expected another word")
        if message == b"quote":
            raise precondition("got " + "x" * FRAME_BYTES)
        if message == b"fail":
            raise KeyError("nothing there")
        yield b"", message


@contextmanager
def listening(serve: served.Serve = echo) -> Iterator[SocketListener]:
    opened = SocketListener(serve)
    try:
        yield opened
    finally:
        opened.close()


KINDS = ("unix", "tcp")


def line_to(opened: SocketListener, kind: str, token: bytes | None = None) -> FramedSocket:
    token = opened.invite().token if token is None else token
    if kind == "unix":
        return meeting.connect_here(opened.name, token)
    return meeting.connect_to("127.0.0.1", opened.port, token)


def stream_to(opened: SocketListener, witness: Witness | None = None, kind: str = "tcp") -> LineStream:
    return LineStream(line_to(opened, kind), witness or Witness())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 3 << 20, FRAME_BYTES])
def test_messages_of_any_size_come_whole(size: int, kind: str) -> None:
    with listening() as opened, closing(stream_to(opened, kind=kind)) as stream:
        message = os.urandom(size)
        for _ in range(2):
            # Far more than a socket holds: the other end reads meanwhile.
            stream.send([message[: size // 3], message[size // 3 :]])
            assert stream.receive() == message


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_comes_in_uninvited_or_twice(kind: str) -> None:
    with listening() as opened:
        invitation = opened.invite()
        for stranger in (b"", b"guessed", os.urandom(16)):
            with pytest.raises(LineError, match="did not let this line in"):
                line_to(opened, kind, stranger)
        with closing(line_to(opened, kind, invitation.token)) as line:
            with pytest.raises(LineError, match="did not let this line in"):
                line_to(opened, kind, invitation.token)
            line.send([b"hello"])
            assert line.receive() == (b"hello", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_ends_with_what_it_was_asked_on(kind: str) -> None:
    """On the server's side too: of a worker that is stopped, or whose machine is gone, nothing is kept."""
    with listening() as opened:
        used, unused = opened.invite(), opened.invite()
        with closing(line_to(opened, kind, used.token)) as line:
            used.withdraw()
            assert line.receive() is None
            unused.withdraw()
            with pytest.raises(LineError, match="did not let this line in"):
                line_to(opened, kind, unused.token)
            wait_until(lambda: not opened._open and not opened._invited, "both to be forgotten")


def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "INTRODUCTION", 0.05)
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as silent:
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""


def test_a_stranger_may_not_say_much() -> None:
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.sendall(struct.pack("<IB", 17, 0) + bytes(17))
        # A reset, if it had not read everything.
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


def test_a_refusal_ends_the_line_with_its_code_and_reason() -> None:
    with listening() as opened, closing(stream_to(opened)) as stream:
        stream.send([b"refuse"])
        with pytest.raises(LineBroken, match="expected another word") as caught:
            stream.receive()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(LineBroken) as after:
            stream.receive()
        assert after.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_refusal_that_quotes_much_is_told_all_the_same() -> None:
    with listening() as opened, closing(stream_to(opened)) as stream:
        stream.send([b"quote"])
        with pytest.raises(LineBroken, match="got xxx") as caught:
            stream.receive()
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_failure_of_the_server_is_told() -> None:
    with listening() as opened, closing(stream_to(opened)) as stream:
        stream.send([b"fail"])
        with pytest.raises(LineBroken, match="nothing there") as caught:
            stream.receive()
        assert caught.value.code() == grpc.StatusCode.UNKNOWN


def test_a_line_ends_with_its_witness() -> None:
    """A stopped server closes no socket: it is gRPC that notices."""
    hold, asked = threading.Event(), threading.Event()

    def stuck(messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
        next(messages)
        asked.set()
        hold.wait(PATIENCE)
        yield [b""]

    witness = Witness()
    with listening(stuck) as opened, closing(stream_to(opened, witness)) as stream:

        def later() -> None:
            assert asked.wait(PATIENCE)
            witness.over()

        other = threading.Thread(target=later)
        other.start()
        stream.send([b"?"])
        with pytest.raises(LineBroken) as caught:
            stream.receive()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        other.join(PATIENCE)
        hold.set()


def test_the_server_knows_that_its_caller_is_gone() -> None:
    callers: list[Caller] = []

    def keep(messages: Iterator[Message], caller: Caller) -> Iterator[Parts]:
        callers.append(caller)
        yield from ([message] for message in messages)

    with listening(keep) as opened:
        stream = stream_to(opened)
        stream.send([b"here"])
        assert stream.receive() == b"here"
        assert callers[0].is_active()
        stream.close()
        wait_until(lambda: not callers[0].is_active(), "the server to notice")


def test_what_is_no_frame_ends_only_its_own_line() -> None:
    with listening() as opened, closing(stream_to(opened)) as good:
        with closing(line_to(opened, "unix")) as bad:
            bad._socket.sendall(struct.pack("<IB", FRAME_BYTES + 1, 0))
            assert bad.receive() is None
        good.send([b"still here"])
        assert good.receive() == b"still here"
        with pytest.raises(LineBroken, match="at most"):
            good.send([bytes(FRAME_BYTES + 1)])


def test_another_user_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as opened, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        name = opened.name
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        stranger.connect(f"\0{name}")
        assert stranger.recv(1) == b""
        with pytest.raises(LineError, match="user 4242"):
            meeting.connect_here(name, b"")


def test_one_too_many_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_LINES", 1)
    with listening() as opened, closing(stream_to(opened)) as first:
        first.send([b"first"])
        assert first.receive() == b"first"
        with pytest.raises(LineError):
            stream_to(opened)


def test_nobody_listens() -> None:
    with pytest.raises(LineError, match="no line"):
        meeting.connect_here("pswire-nobody", b"")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(LineError, match="no line"):
            meeting.connect_to("127.0.0.1", deaf.getsockname()[1], b"")


def test_a_frame_that_is_cut_short_is_none() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with closing(FramedSocket(one)) as line:
        other.sendall(struct.pack("<IB", 10, 0) + b"half")
        other.close()
        assert line.receive() is None


@pytest.mark.parametrize("kind", ["socket", "shared-memory"])
def test_a_session_steps_on_lines_and_goes_on_without(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with serving(servers=2) as cluster, connect(cluster.hosts, transport=kind) as session:
        step(session, 0)
        assert session.transport == (kind, kind)
        ways = [shard._transport for shard in session._shards]
        assert all(way._beside is not None and way._beside.open for way in ways)
        grant = granted(session)
        # Neither the socket nor what was agreed on it is there any more.
        for way in ways:
            assert way._beside is not None
            way._beside.close()
            way._required = None
        monkeypatch.setattr(meeting, "connect_here", refused)
        monkeypatch.setattr(meeting, "connect_to", refused)
        step(session, 1, grant=grant)
        assert all(way._beside is None for way in ways)
        assert set(session.transport) == {"shared-memory" if kind == "shared-memory" else "grpc"}
        assert session.done().version == 2


def refused(*_: object) -> FramedSocket:
    raise LineError("no line today")


def test_a_session_that_was_turned_away_shares_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "MOST_LINES", 1)
    with serving(workers=2) as cluster, connect(cluster.hosts, name="w0") as one:
        with connect(cluster.hosts, name="w1") as other:
            for session, grant in zip((one, other), begun(one, other), strict=True):
                step(session, 0, grant=grant)
            beside = [session._shards[0]._transport._beside for session in (one, other)]
            assert beside.count(None) == 1
            assert {one.transport, other.transport} == {("shared-memory",)}


def test_a_session_that_insists_on_a_socket_is_told_why_not() -> None:
    with serving(transport="grpc") as cluster, connect(cluster.hosts, "socket") as session:
        with pytest.raises(
            psworker.Refused, match="a socket was asked for, but not .* with --transport grpc"
        ):
            session.ready()


def test_a_port_that_is_out_of_reach_costs_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(meeting, "connect_to", refused)
    with serving() as cluster, connect(cluster.hosts, "auto", wire_dtype="bfloat16") as session:
        step(session, 0)
        step(session, 1)
        assert session.transport == ("grpc",)
    said = [record.message for record in caplog.records if "no line today" in record.message]
    assert len(said) == 1
    assert said[0].startswith("a socket cannot be had with server 0 at")


class Door:
    """A listening socket of a process that has no descriptor left."""

    def __init__(self) -> None:
        self.knocks = 0
        self.heard = threading.Event()

    def accept(self) -> tuple[socket.socket, str]:
        self.knocks += 1
        self.heard.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_server_without_descriptors_asks_again_at_leisure() -> None:
    """Who cannot be let in stays at the door: `accept` fails at once, again and again."""
    opened, door = SocketListener(echo), Door()
    waiting = threading.Thread(target=opened._accept, args=(door,))
    waiting.start()
    assert door.heard.wait(PATIENCE)
    opened.close()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert door.knocks <= 2


def test_a_line_that_is_closed_here_is_over() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with closing(other):
        line = FramedSocket(one)
        line.close()
        assert line.receive() is None
