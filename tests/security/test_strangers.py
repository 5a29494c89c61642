"""Whoever fails in the handshake costs the server no line of its log, and keeps nobody out."""

import socket
import threading
from pathlib import Path

import pytest

from pswire.addresses import parse_address
from pswire.security.names import Role
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster
from tests.service.serving import PATIENCE

pytestmark = pytest.mark.cluster

STRANGERS = 100


def test_failed_handshakes_leave_no_line_in_the_log(tmp_path: Path, identities: Identities) -> None:
    """gRPC's library would write one for each."""
    with ProtectedCluster(tmp_path, identities) as cluster:
        place = parse_address(cluster.start_servers(1))
        stranger = identities.credentials(Role.WORKER, "w0", authority=identities.foreign)
        context = stranger.identity.client_context()
        context.check_hostname, context.verify_mode = False, 0  # type: ignore[assignment]
        context.set_alpn_protocols(["h2"])

        def knock() -> None:
            for number in range(STRANGERS // 4):
                with socket.create_connection((place.host, place.port), PATIENCE) as plain:
                    if number % 2:
                        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                        plain.recv(100)
                    else:
                        with context.wrap_socket(plain) as tls:
                            assert tls.recv(1) == b""

        threads = [threading.Thread(target=knock) for _ in range(4)]
        for thread in threads:
            thread.start()
        worker = cluster.start_worker("--batches", "3")
        for thread in threads:
            thread.join()
        assert worker.wait_exit() == 0
        assert cluster.servers[0].wait_exit() == 0
        said = cluster.servers[0].errors
        assert "andshake" not in said and len(said.splitlines()) < 20, said
