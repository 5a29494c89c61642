"""The port that Prometheus scrapes: GET /metrics, and nothing else."""

import asyncio
import ipaddress
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from psserver.service.errors import RequestRefused
from psserver.service.guard.authorization import METRICS, Authorizer
from psserver.service.guard.limits import METRICS_CONNECTIONS
from psserver.service.net.loop import loop_time
from psserver.service.runtime import Runtime
from pswire.addresses import Address
from pswire.logs.events import event
from pswire.own_files import write_file
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, subject_among
from pswire.transport.socket_handshake import BACKLOG

log = logging.getLogger("ps-server")

# Seconds from the accept to the end of a connection, whatever it sends.
DEADLINE: Final = 10.0
# Bytes of a request, at most.
HEAD_BYTES: Final = 2**16
# Seconds for which a rendered text answers scrapes.
AGE: Final = 1.0


class Metrics:
    """The /metrics endpoint of one server: call `begin` in the loop, and `close` at the end. The loop's thread owns it.

    A request must name the host as an IP address, as localhost or as one of `names`; this refuses web pages that point
    their own name here (DNS rebinding). A connection lasts at most `deadline` seconds; those beyond
    METRICS_CONNECTIONS are closed at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        bind: str,
        port: int,
        names: Collection[str],
        registry: CollectorRegistry,
        credentials: Credentials = NO_TLS,
        authorizer: Authorizer | None = None,
        deadline: float = DEADLINE,
    ) -> None:
        """Listen. `port`: 0 takes a free one. `authorizer` identifies callers if `credentials` have TLS. Raises
        SocketError if the address is not available."""
        self._names = frozenset(names) | {"localhost"}
        self._registry, self._deadline = registry, deadline
        self._credentials, self._authorizer = credentials, authorizer or Authorizer()
        self._runtime, self._socket = runtime, runtime.listen_tcp(bind, port)
        self.address = Address(bind, self._socket.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()
        self._rendering = asyncio.Lock()
        self._text, self._rendered = b"", float("-inf")

    async def begin(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, sock=self._socket, limit=HEAD_BYTES, backlog=BACKLOG
        )

    async def text(self) -> bytes:
        """Return the metrics in Prometheus's text format, at most AGE seconds old."""
        async with self._rendering:
            now = loop_time()
            if now - self._rendered > AGE:
                collected = _Collected(self._registry)
                self._text = await self._runtime.beside(partial(generate_latest, collected))
                self._rendered = now
            return self._text

    def write(self, file: Path) -> None:
        """Write the present metrics to a file, for a run that ends before the next scrape. Raises OSError."""
        write_file(file, generate_latest(self._registry))

    def close(self) -> None:
        """Close the port, and cut all connections."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        for task in self._open:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._open) >= METRICS_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            async with asyncio.timeout(self._deadline):
                contexts = self._credentials.server_contexts
                if contexts is not None:
                    await writer.start_tls(contexts())
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    writer.write(_reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
                else:
                    writer.write(
                        await self._answer(head.decode("latin-1"), writer.get_extra_info("peercert"))
                    )
                writer.close()
                await writer.wait_closed()
        except (Exception, asyncio.CancelledError) as error:
            # Mostly a peer that has gone, or waits too long. asyncio would log a task that ends otherwise.
            log.debug("metrics: a connection ended: %r", error, extra=event("scrape_failed"))
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _answer(self, head: str, certificate: Mapping[str, Any] | None) -> bytes:
        first, *rest = head.split("\r\n")
        method, _, target = first.partition(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in rest)}
        if method != "GET":
            return _reply(HTTPStatus.NOT_IMPLEMENTED)
        if not _known(headers.get("host", ""), self._names):
            return _reply(HTTPStatus.MISDIRECTED_REQUEST)
        if self._credentials.encrypted and (refusal := self._refusal(certificate or {})) is not None:
            return _reply(refusal)
        if target.split(" ")[0].partition("?")[0] != "/metrics":
            return _reply(HTTPStatus.NOT_FOUND)
        return _reply(HTTPStatus.OK, await self.text())

    def _refusal(self, certificate: Mapping[str, Any]) -> HTTPStatus | None:
        """Return why the owner of a certificate may not read metrics, or None."""
        names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        try:
            peer = self._authorizer.peer_of(subject_among(names))
        except (RequestRefused, IdentityError):
            return HTTPStatus.UNAUTHORIZED
        return None if peer.role in METRICS else HTTPStatus.FORBIDDEN


class _Collected(Collector):
    """What a registry had, for another thread to format."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterable[Metric]:
        return self._families


def _reply(status: HTTPStatus, body: bytes = b"") -> bytes:
    kind = CONTENT_TYPE_LATEST if status == HTTPStatus.OK else "text/plain"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}Connection: close\r\n\r\n".encode() + body


def _known(host: str, names: Collection[str]) -> bool:
    """Return True if `host`, a Host header, is an IP address or one of `names`, perhaps with a port."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
