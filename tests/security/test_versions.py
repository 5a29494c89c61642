"""A server speaks TLS 1.3 on every port, whatever the other end would do with."""

import socket
import ssl
from pathlib import Path

import pytest

from pswire.addresses import parse_address
from pswire.security.names import Role
from tests.promises import promise
from tests.security.authorities import worker
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster
from tests.security.test_line import listening
from tests.service.serving import PATIENCE

pytestmark = pytest.mark.cluster


def version(port: int, context: ssl.SSLContext) -> str | None:
    """That both ends agree on."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            return tls.version()


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    """One that knows nothing newer than TLS 1.2."""
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


@promise("No port speaks anything older than TLS 1.3.")
def test_grpc_speaks_nothing_older(identities: Identities, tmp_path: Path) -> None:
    with ProtectedCluster(tmp_path, identities) as cluster:
        # A variable of gRPC's that others have not: this server is no fork of one in which gRPC is loaded already.
        cluster.start_servers(1, "--workers", "1", GRPC_VERBOSITY="NONE")
        port = parse_address(cluster.addresses[0]).port
        shown = identities.credentials(Role.WORKER, "w0").identity
        new = shown.client_context()
        new.set_alpn_protocols(["h2"])
        assert version(port, new) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            version(port, old(shown.client_context()))
        # It is the version that was refused: the server goes on, and answers who speaks 1.3.
        assert version(port, new) == "TLSv1.3"
        assert cluster.status().security == "tls"


def test_the_line_speaks_nothing_older() -> None:
    shown = worker()
    with listening() as opened:
        assert version(opened.port, shown.client_context()) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            version(opened.port, old(shown.client_context()))
