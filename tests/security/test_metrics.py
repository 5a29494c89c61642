"""/metrics by the same identity: TLS, and observers only."""

import http.client
import ssl
from collections.abc import Callable, Iterator

import pytest

from psserver.options import Options
from pswire.addresses import parse_address
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from tests.security.identities import Identities
from tests.service.serving import PATIENCE, Served

pytest.importorskip("prometheus_client", reason="needs the extra metrics")

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server; its metrics' address."""
    started: list[Served] = []

    def serving(security: SecurityOptions, name: str = "127.0.0.1") -> str:
        chosen = Options(ps_hosts=f"{name}:0", bind="127.0.0.1", metrics_port=0, security=security)
        started.append(Served(chosen))
        return str(started[-1].events["ready"]["metrics"])

    yield serving
    for served in started:
        served.interrupt()
        served.ended()


def get(address: str, context: ssl.SSLContext | None, **headers: str) -> tuple[int, str]:
    place = parse_address(address)
    if context is None:
        connection = http.client.HTTPConnection(place.host, place.port, timeout=PATIENCE)
    else:
        connection = http.client.HTTPSConnection(place.host, place.port, timeout=PATIENCE, context=context)
    try:
        connection.request("GET", "/metrics", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def test_metrics_are_for_observers_over_tls(serve: Serve, identities: Identities) -> None:
    address = serve(identities.options(Role.SERVER, "s0"))
    for role, status in ((Role.OBSERVER, 200), (Role.ADMIN, 200), (Role.SERVER, 200), (Role.WORKER, 403)):
        context = identities.credentials(role, "any").identity.client_context()
        code, text = get(address, context)
        assert code == status
        assert ("paramserver_certificate_expiry_timestamp_seconds{" in text) == (status == 200)
    believing = ssl.create_default_context(cafile=str(identities.files(Role.OBSERVER).ca))
    for context in (None, believing):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            get(address, context)


def test_a_certificate_without_the_servers_own_name_is_said_at_the_start(
    serve: Serve, identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    serve(identities.options(Role.SERVER, "s0", hosts=("node.example",)), "node.example")
    assert "its own name in --ps-hosts" not in caplog.text
    serve(identities.options(Role.SERVER, "s0"), "node.example")
    assert "not for node.example, its own name in --ps-hosts" in caplog.text
