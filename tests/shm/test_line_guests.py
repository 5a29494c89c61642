"""Who knocks at the door of the lines: strangers who keep nobody out, on whatever address the server has."""

import socket
import struct
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from psserver.service.transport import sockets as served
from psserver.service.transport.sockets import SocketListener
from pswire.transport import framed_socket as lines
from pswire.transport import socket_handshake as meeting
from pswire.transport.framed_socket import LineError
from tests.service.serving import PATIENCE, wait_until
from tests.shm.test_lines import echo, line_to, listening


def knock(stack: ExitStack, opened: SocketListener) -> socket.socket:
    stranger = stack.enter_context(socket.create_connection(("127.0.0.1", opened.port), PATIENCE))
    wait_until(lambda: len(opened._strangers) > 0, "the stranger to stand at the door")
    return stranger


def test_silent_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as lines that are open, nor as ones that are being let in."""
    monkeypatch.setattr(served, "MOST_LINES", 1)
    monkeypatch.setattr(served, "MOST_STRANGERS", 2)
    with listening() as opened, ExitStack() as stack:
        silent = [knock(stack, opened) for _ in range(3)]
        assert silent[0].recv(1) == b"", "the first of them had to go"
        with closing(line_to(opened, "tcp")) as line:
            line.send([b"hello"])
            assert line.receive() == (b"hello", 0)


def test_a_stranger_gains_nothing_by_speaking_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, all of them do not."""
    one, other = socket.socketpair()
    said = iter(struct.pack("<IB", 4, 0) + b"toke")
    now = [0.0]

    def clock() -> float:
        """Two seconds and one byte later."""
        now[0] += 2.0
        other.sendall(bytes([next(said)]))
        return now[0]

    with closing(lines.FramedSocket(one)) as line, closing(other):
        monkeypatch.setattr(lines, "time", SimpleNamespace(monotonic=clock))
        assert line.first(most=16) is None
        assert now[0] <= 2 * lines.INTRODUCTION


def test_every_interface_is_that_of_both_protocols() -> None:
    """As for gRPC: who reaches a server there reaches its lines."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with closing(SocketListener(echo, "0.0.0.0")) as opened:
        for host in ("127.0.0.1", "::1", "localhost"):
            with closing(meeting.connect_to(host, opened.port, opened.invite().token)) as line:
                line.send([b"hello"])
                assert line.receive() == (b"hello", 0)


def test_a_name_with_an_address_that_the_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "localhost" without IPv6, say."""
    elsewhere, here = ("192.0.2.1", 0), ("127.0.0.1", 0)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in (elsewhere, here)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with closing(meeting.listen_at("two.example", 0)) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    found.pop()
    with pytest.raises(LineError, match="cannot listen on two.example:0: Cannot assign"):
        meeting.listen_at("two.example", 0)
