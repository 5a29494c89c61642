"""The line over TLS: whole messages both ways, whom it is for, and nothing in the clear."""

import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from psserver.service.errors import precondition
from psserver.service.guard import calls
from psserver.service.guard.authorization import Authorizer
from psserver.service.net import sockets
from psserver.service.net.sockets import Serve
from psserver.service.net.streams import ServerStream
from pswire import running
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.files import TlsFiles
from pswire.security.identity import Identity
from pswire.security.names import Role
from pswire.transport import framed_socket
from pswire.transport import socket_handshake as handshake
from pswire.transport.framed_socket import FRAME_BYTES, FramedSocket, SocketError
from pswire.transport.frames import Message
from psworker.data.streams import SocketBroken, SocketStream
from tests.comparing import same
from tests.probes import send_beneath_tls, send_raw
from tests.promises import promise
from tests.relay import relayed
from tests.security.authorities import authority, ended, server, worker
from tests.sentences import Recorder
from tests.service.loops import CLAIM, Opened
from tests.service.loops import opened as opened_by
from tests.service.serving import PATIENCE, wait_until
from tests.shm.test_sockets import echo

WORKER = worker()


def listening(serve: Serve = echo) -> AbstractContextManager[Opened]:
    context = server().server_context()
    return opened_by(serve, contexts=lambda: context)


def line_to(opened: Opened, identity: Identity = WORKER, first: bytes = CLAIM) -> FramedSocket:
    return handshake.connect_tcp("127.0.0.1", opened.port, first, identity.client_context())


@contextmanager
def stream_to(opened: Opened) -> Iterator[SocketStream]:
    with closing(SocketStream(line_to(opened), "server 0", PATIENCE)) as stream:
        yield stream


@promise("A connection for payloads needs a certificate of its role, and a host of the name that was meant.")
def test_failed_handshakes_are_counted_and_some_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with listening() as opened:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", opened.port), PATIENCE) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert plain.recv(100) is not None
        wait_until(lambda: opened.refused["handshake"] == 3, "all are counted")
    assert caplog.text.count("a connection of 127.0.0.1 to the data port was refused") == 1


@pytest.mark.parametrize(
    "size", [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 131_072, 3 << 20, FRAME_BYTES]
)
def test_messages_of_any_size_come_whole(size: int) -> None:
    with listening() as opened, stream_to(opened) as stream:
        message = os.urandom(size)
        for _ in range(2):
            stream.send([message[: size // 3], message[size // 3 :]])
            assert same(stream.receive(), message)


def test_what_comes_together_is_given_piece_by_piece() -> None:
    """Bytes that TLS has decrypted are seen although the system has nothing more to read."""
    with listening() as opened, stream_to(opened) as stream:
        for round_of in range(3):
            messages = [os.urandom(length) for length in (0, 5, 40_000, 3, 70_000, 100_000, 1, 17_000) * 4]
            framed = b"".join(framed_socket.HEAD.pack(len(each), 0) + each for each in messages)
            send_raw(stream.connection, framed)
            for number, message in enumerate(messages):
                assert same(stream.receive(), message), (round_of, number)


def test_many_frames_are_taken_and_sent_in_bulk() -> None:
    frames = [bytes([number]) * (2 << 20) for number in range(16)]

    async def bulk(stream: ServerStream) -> None:
        """Keeps what comes, by threads where it can, and sends it back so."""
        kept: list[bytes] = []

        def take(message: Message) -> bool:
            kept.append(bytes(message))
            return len(kept) < len(frames)

        while len(kept) < len(frames):
            await stream.receive_many(take)
            if len(kept) < len(frames):
                message = await stream.receive()
                assert message is not None
                take(message)
        left = iter([(b"", memoryview(each)) for each in kept])
        await stream.send_many(left)
        for parts in left:
            await stream.send(parts)
        while await stream.receive() is not None:
            pass

    with listening(bulk) as opened, stream_to(opened) as stream:
        for each in frames:
            stream.send([b"", each])
        for each in frames:
            assert same(stream.receive(), each)


def test_both_ends_may_be_much_slower_than_the_other() -> None:
    """A send that the system takes in pieces goes on where it stopped."""
    big = os.urandom(FRAME_BYTES)

    async def slow(stream: ServerStream) -> None:
        for _ in range(4):
            await stream.send([big[:100], big[100:]])
        while (message := await stream.receive()) is not None:
            assert same(message, big)
            await stream.send([b"taken"])

    with listening(slow) as opened, stream_to(opened) as stream:
        # Each four times as much as the sockets hold.
        for _ in range(4):
            assert same(stream.receive(), big)
        for _ in range(3):
            stream.send([big])
            assert stream.receive() == b"taken"


def test_a_line_is_for_members_with_a_certificate_of_their_role(tmp_path: Path, sentences: Recorder) -> None:
    files = TlsFiles.in_folder(tmp_path, "server")
    files.write(server())
    observer, context = authority().issue(Role.OBSERVER, "eye"), server().server_context()
    known = Authorizer(Credentials(LiveIdentity(files), Role.SERVER))
    with opened_by(echo, contexts=lambda: context, authorizer=known) as opened:
        with pytest.raises(SocketError) as refused:
            line_to(opened, observer)
        sentences.check(refused)
        assert opened.refused["role"] == 1
        with pytest.raises(SocketError) as refused:
            line_to(opened, WORKER, b"guessed")
        sentences.check(refused)
        with closing(line_to(opened)) as connection:
            connection.send([b"hello"])
            assert connection.receive() == (b"hello", 0)


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (
            Identity(authority().cert, *(lambda other: (other.cert, other.key))(worker(cluster="other"))),
            "UNKNOWN_CA",
        ),
        (ended(Role.WORKER, "w0"), "CERTIFICATE_EXPIRED"),
        (worker(cluster="other"), "self-signed certificate|local issuer"),
    ],
    ids=["foreign", "ended", "another cluster's"],
)
def test_who_is_not_believed_is_told_why_and_kept_nothing_of(identity: Identity, said: str) -> None:
    with listening() as opened:
        with pytest.raises(SocketError, match=said):
            line_to(opened, identity)
        wait_until(lambda: not opened.unauthenticated and not opened.connections, "the server to let go")


def test_the_servers_name_must_be_that_of_the_host() -> None:
    with listening() as opened, pytest.raises(SocketError, match="IP address mismatch"):
        handshake.connect_tcp("127.0.0.2", opened_everywhere(opened), CLAIM, WORKER.client_context())


def opened_everywhere(opened: Opened) -> int:
    """On Linux all of 127.0.0.0/8 is this machine; the listener has 127.0.0.1 only, so a relay does the rest."""
    relay = socket.create_server(("127.0.0.2", 0))
    target = ("127.0.0.1", opened.port)

    def carry() -> None:
        with relay, relay.accept()[0] as near, socket.create_connection(target) as far:
            far.sendall(near.recv(1 << 16))
            near.sendall(far.recv(1 << 16))

    threading.Thread(target=carry).start()
    port: int = relay.getsockname()[1]
    return port


def test_plaintext_is_no_way_in(sentences: Recorder) -> None:
    """Neither with a good claim at a port with TLS, nor with TLS at one without."""
    with listening() as opened:
        with pytest.raises(SocketError) as refused:
            handshake.connect_tcp("127.0.0.1", opened.port, CLAIM)
        sentences.check(refused)
        wait_until(lambda: not opened.unauthenticated, "the server to let go")
    with opened_by(echo) as plain, pytest.raises(SocketError, match="no TLS with 127.0.0.1"):
        line_to(plain)


def test_local_sockets_stay_as_they_are() -> None:
    """The system says whose they are, and no other machine sees them."""
    with listening() as opened:
        with closing(handshake.connect_unix(opened.name, CLAIM)[0]) as connection:
            connection.send([b"hello"])
            assert connection.receive() == (b"hello", 0)


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16"], ids=["nothing", "a half", "a byte"]
)
def test_a_handshake_that_does_not_end_is_ended(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_socket, "HANDSHAKE_TIMEOUT", 0.1)
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as silent:
        silent.sendall(said)
        silent.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""
        wait_until(lambda: not opened.unauthenticated, "the server to let go")


def test_who_shakes_hands_and_then_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has shaken hands in time: the clock that its silence is measured by goes on afterwards."""
    late = [0.0]
    monkeypatch.setattr(framed_socket, "HANDSHAKE_TIMEOUT", PATIENCE)
    monkeypatch.setattr(calls, "loop_time", lambda: running.now() + late[0])
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as plain:
        plain.settimeout(PATIENCE)
        with WORKER.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as silent:
            late[0] = 2 * PATIENCE
            assert silent.recv(1) == b""


def test_an_unauthenticated_connection_may_not_send_much() -> None:
    with listening() as opened, socket.create_connection(("127.0.0.1", opened.port)) as plain:
        plain.settimeout(PATIENCE)
        with WORKER.client_context().wrap_socket(plain, server_hostname="127.0.0.1") as other:
            other.sendall(struct.pack("<IB", sockets.FIRST_BYTES + 1, 0) + bytes(17))
            with suppress(ConnectionResetError):
                assert other.recv(1) == b""


def test_a_refusal_reaches_a_peer_that_is_still_sending(
    monkeypatch: pytest.MonkeyPatch, sentences: Recorder
) -> None:
    # However long it takes to send the rest.
    monkeypatch.setattr(sockets, "REFUSED_CLOSES", PATIENCE)

    async def picky(stream: ServerStream) -> None:
        await stream.receive()
        raise precondition("expected another word")

    with listening(picky) as opened, stream_to(opened) as stream:
        for _ in range(32):
            stream.send([bytes(2 << 20)])
        with pytest.raises(SocketBroken) as refused:
            stream.receive()
        sentences.check(refused)


def test_a_connection_ends_with_its_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOOK_EVERY", 0.05)
    with listening() as opened, closing(line_to(opened)) as connection:
        opened.end_membership(CLAIM)
        assert connection.receive() is None


def test_ciphertext_is_never_read_as_frames_after_a_cut() -> None:
    """`SSLSocket.shutdown` would leave a socket that reads ciphertext; here the reader is told of an end."""
    with ExitStack() as stack:
        opened = stack.enter_context(listening())
        connection = stack.enter_context(closing(line_to(opened)))
        connection.send([os.urandom(1 << 20)])
        answers = [connection.receive()]
        connection.send([os.urandom(1 << 20)])
        connection.cut()
        while answers[-1] is not None:
            answers.append(connection.receive())
            assert len(answers) < 4


def test_a_byte_that_is_changed_on_the_way_ends_the_line() -> None:
    """And gives no message."""
    with listening() as opened, closing(line_to(opened)) as connection:
        connection.send([b"hello"])
        assert connection.receive() == (b"hello", 0)
        send_beneath_tls(connection, b"\x17\x03\x03\x00\x20" + bytes(32))
        assert connection.receive() is None
        wait_until(lambda: not opened.connections, "the server to let go")


def test_who_listens_on_the_way_sees_nothing() -> None:
    """Neither claim nor payload, both of which are seen where there is no TLS."""
    pattern = b"the pattern of these weights" * 1000

    def seen(opened: Opened, context: ssl.SSLContext | None) -> bytes:
        with relayed(("127.0.0.1", opened.port), record=True) as relay:
            with closing(handshake.connect_tcp("127.0.0.1", relay.port, CLAIM, context)) as connection:
                connection.send([pattern])
                assert same(connection.receive(), (pattern, 0))
        return bytes(relay.seen)

    with opened_by(echo) as plain:
        passed = seen(plain, None)
        assert CLAIM in passed
        assert pattern[:28] in passed
    with listening() as opened:
        passed = seen(opened, WORKER.client_context())
        assert len(passed) > 2 * len(pattern)
        assert CLAIM not in passed
        assert b"the pattern" not in passed
        # Of TLS 1.3 not even the certificates' names.
        assert b"ps://lab" not in passed
