"""A server that is gone between a connection and its handshake: no matter of trust, and nothing is left open."""

import gc
import select
import socket
import struct
from typing import Any

import pytest

from pswire.addresses import parse_address
from pswire.security import probe
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import Role
from tests.patience import PATIENCE
from tests.security.identities import Identities


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_connection_that_was_reset_before_the_handshake_is_closed(
    monkeypatch: pytest.MonkeyPatch, identities: Identities, encrypted: bool
) -> None:
    """A socket that stays open is a warning, which fails this test."""
    connect = socket.create_connection
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset(*arguments: Any) -> socket.socket:
            here = connect(*arguments)
            there, _ = listener.accept()
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()
            poll = select.poll()
            poll.register(here, select.POLLIN)
            assert poll.poll(1000 * PATIENCE)
            return here

        monkeypatch.setattr(socket, "create_connection", reset)
        credentials: Credentials = identities.credentials(Role.WORKER, "w0") if encrypted else NO_TLS
        address = parse_address(f"127.0.0.1:{listener.getsockname()[1]}")
        problem = probe.find_problem(address, credentials)
        gc.collect()
    if encrypted:
        assert problem is not None and problem.passing and "does not speak TLS (yet)" in problem.sentence
    else:
        assert problem is None
