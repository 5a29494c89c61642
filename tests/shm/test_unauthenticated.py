"""Connections that prove nothing keep no others out, on whatever address the server listens."""

import socket
import struct
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from psserver.service.net import sockets as served
from pswire.transport import framed_socket
from pswire.transport import socket_handshake as handshake
from tests.service.loops import CLAIM, Opened
from tests.service.loops import opened as opened_by
from tests.service.serving import PATIENCE, wait_until
from tests.shm.test_sockets import echo, listening, socket_to


def unproven(stack: ExitStack, opened: Opened) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", opened.port), PATIENCE))
    wait_until(lambda: opened.unauthenticated > 0, "the connection to be accepted")
    return connection


def test_silent_connections_keep_no_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as connections of members, nor as ones that have not said whose they are."""
    monkeypatch.setattr(served, "CONNECTIONS", 1)
    with listening() as opened, ExitStack() as stack:
        opened.watch.most_unproven = 2
        silent = [unproven(stack, opened) for _ in range(3)]
        assert silent[0].recv(1) == b"", "the first of them is cut"
        with closing(socket_to(opened, "tcp")) as connection:
            connection.send([b"hello"])
            assert connection.receive() == (b"hello", 0)


def test_sending_slowly_gains_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, all of them do not."""
    one, other = socket.socketpair()
    said = iter(struct.pack("<IB", 4, 0) + b"toke")
    now = [0.0]

    def clock() -> float:
        """Two seconds and one byte later."""
        now[0] += 2.0
        other.sendall(bytes([next(said)]))
        return now[0]

    with closing(framed_socket.FramedSocket(one)) as connection, closing(other):
        monkeypatch.setattr(framed_socket, "running", SimpleNamespace(now=clock))
        assert connection.first(most=16) is None
        assert now[0] <= 2 * framed_socket.HANDSHAKE_TIMEOUT


def test_every_interface_is_that_of_both_protocols() -> None:
    """As for gRPC: a worker that reaches a server there reaches its sockets."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with opened_by(echo, "0.0.0.0") as opened:
        for host in ("127.0.0.1", "::1", "localhost"):
            with closing(handshake.connect_tcp(host, opened.port, CLAIM)) as connection:
                connection.send([b"hello"])
                assert connection.receive() == (b"hello", 0)
