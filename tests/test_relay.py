"""Connections through a relay, which are cut and made again."""

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.patience import PATIENCE
from tests.relay import Relay


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """Host and port of a server that says everything again."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listening.getsockname()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def connected(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=PATIENCE)


def said(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    got = b""
    while len(got) < len(text) and (data := connection.recv(65536)):
        got += data
    return got


def test_what_is_cut_ends_and_a_new_connection_is_carried(echo: tuple[str, int]) -> None:
    relay = Relay(echo)
    with connected(relay) as first, connected(relay) as second:
        assert said(first, b"one" * 100_000) == b"one" * 100_000
        assert said(second, b"two") == b"two"
        relay.cut()
        for connection in (first, second):
            with pytest.raises(OSError):
                # A reset, or the end of the stream: which of them depends on what was under way.
                assert connection.recv(1) == b""
                raise ConnectionResetError
    with connected(relay) as third:
        assert said(third, b"three") == b"three"
        relay.close()
    with pytest.raises(OSError):
        connected(relay)


def test_a_server_that_is_away_is_tried_again_for_the_next_connection(echo: tuple[str, int]) -> None:
    # Bound and not listening: nobody answers there, and nobody else gets the port.
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        relay = Relay(server.getsockname())
        with connected(relay) as first:
            assert first.recv(1) == b""
        server.listen()
        with connected(relay) as second:
            server.settimeout(PATIENCE)
            connection, _ = server.accept()
            with connection:
                second.sendall(b"x")
                assert connection.recv(1) == b"x"
        relay.close()
