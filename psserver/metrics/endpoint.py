"""The port that Prometheus scrapes: GET /metrics, and nothing else."""

import ipaddress
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from psserver.metrics.collector import registry
from psserver.service.errors import RequestRefused
from psserver.service.guard.authorization import ANYBODY, METRICS, Authorizer, Peer
from psserver.service.guard.limits import METRICS_CONNECTIONS
from psserver.service.job.job import ServedJob
from psserver.service.store.host import ShardHost
from pswire import running
from pswire.addresses import Address
from pswire.own_files import write_file
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, subject_among

if TYPE_CHECKING:
    from psserver.service.replicas.overview import ReplicaNumbers

log = logging.getLogger("ps-server")

# The limit of concurrent connections. A Prometheus needs one.
# Seconds from the accept to the end of a connection, whatever it sends.
DEADLINE: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Served:
    """A connection. `due`: when it is cut; monotonic seconds."""

    request: socket.socket
    thread: threading.Thread
    due: float


class ConnectionServer(ThreadingMixIn, HTTPServer):
    """An HTTP server with limited connections.

    At most METRICS_CONNECTIONS at once, for `deadline` seconds each.

    Connections beyond the limit are closed at once. The thread of `serve_forever` accepts, counts and cuts; the
    threads of connections only serve and close. Raises OSError if the address is not available.
    """

    daemon_threads = True
    allow_reuse_address = False
    # Accepting and closing a flood is faster than letting connections wait.
    request_queue_size = 128

    def __init__(
        self,
        bind: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        deadline: float = DEADLINE,
        contexts: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts`: returns the TLS context of a new connection; None without TLS."""
        self._contexts = contexts
        self._deadline = deadline
        self._served: list[_Served] = []
        # Guards against shutting down a descriptor number that another thread has closed and the system reused.
        self._closing = threading.Lock()
        [found, *_] = socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)
        self.address_family = found[0]
        super().__init__((bind, port), handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self._served = [served for served in self._served if served.thread.is_alive()]
        return len(self._served) < METRICS_CONNECTIONS

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve in the connection's thread. The connection's deadline includes the TLS handshake."""
        if self._contexts is None:
            super().finish_request(request, client_address)
            return
        context = self._contexts()
        # `_cut` shuts down the plain socket, so that one keeps its descriptor and TLS gets a copy.
        with request.dup() as copy, context.wrap_socket(copy, server_side=True) as tls:
            super().finish_request(tls, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread. If that fails, the caller closes the connection and continues."""
        due = running.now() + self._deadline
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address),
            name="metrics-connection", daemon=True,
        )  # fmt: skip
        thread.start()
        self._served.append(_Served(request, thread, due))

    def service_actions(self) -> None:
        now = running.now()
        for served in self._served:
            if now >= served.due:
                self._cut(served.request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error at debug level: mostly a peer that has gone."""
        log.debug("metrics: a connection ended: %r", sys.exception())

    def shutdown_request(self, request: Any) -> None:
        with self._closing:
            super().shutdown_request(request)

    def server_close(self) -> None:
        """Cut all connections. Called after `shutdown`, when deadlines are no longer checked."""
        super().server_close()
        for served in self._served:
            self._cut(served.request)

    def _cut(self, request: socket.socket) -> None:
        """Shut down a socket: its thread wakes up from a read or a write, and closes it."""
        with self._closing, suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


# Seconds for which a rendered text answers scrapes: rendering holds the GIL.
AGE = 1.0


class Metrics:
    """The /metrics endpoint of one server, served from its own threads until `close`.

    `port` 0 takes a free one; raises OSError if the address is not available. A request must name the host as an IP
    address, as localhost or as one of `names`; this refuses web pages that point their own name here (DNS rebinding). A
    connection lasts at most `deadline` seconds. Any thread may call `text`; `_rendering` guards the cached copy.
    """

    def __init__(
        self,
        bind: str,
        port: int,
        names: Collection[str],
        host: ShardHost,
        job: Callable[[], ServedJob | None],
        deadline: float = DEADLINE,
        credentials: Credentials = NO_TLS,
        authorizer: Authorizer | None = None,
        copies: "Callable[[], ReplicaNumbers] | None" = None,
    ) -> None:
        """`job`, `copies`: as for `ServerCollector`. `authorizer` identifies callers if `credentials` have TLS."""
        authorizer = authorizer or Authorizer()
        self._registry = registry(host, job, copies, credentials, authorizer)
        self._rendering = threading.Lock()
        self._text, self._rendered = b"", float("-inf")
        handler = _handler(self.text, frozenset(names) | {"localhost"}, Doorkeeper(credentials, authorizer))
        self._http = ConnectionServer(bind, port, handler, deadline, credentials.server_contexts)
        self.address = Address(bind, self._http.server_port)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True
        )
        self._thread.start()

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format, at most AGE seconds old."""
        with self._rendering:
            if running.now() - self._rendered > AGE:
                self._text = generate_latest(self._registry)
                self._rendered = running.now()
            return self._text

    def write(self, file: Path) -> None:
        """Write the present metrics to a file, for a run that ends before the next scrape. Raises OSError."""
        write_file(file, generate_latest(self._registry))

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class Doorkeeper:
    """Access control of the endpoint. Thread-safe."""

    def __init__(self, credentials: Credentials, authorizer: Authorizer) -> None:
        self._credentials, self._authorizer = credentials, authorizer

    def refuses(self, connection: object) -> HTTPStatus | None:
        if not self._credentials.encrypted:
            return None
        try:
            peer = self._peer(connection)
        except (RequestRefused, IdentityError):
            return HTTPStatus.UNAUTHORIZED
        return None if peer.role in METRICS else HTTPStatus.FORBIDDEN

    def _peer(self, connection: object) -> Peer:
        if not isinstance(connection, ssl.SSLSocket):
            return ANYBODY
        shown: Any = (connection.getpeercert() or {}).get("subjectAltName", ())
        names = [str(value) for kind, value in shown if kind == "URI"]
        return self._authorizer.peer_of(subject_among(names))


def _handler(
    text: Callable[[], bytes], names: Collection[str], door: Doorkeeper
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "ps-server"
        sys_version = ""

        def do_GET(self) -> None:
            if not _known(self.headers.get("Host", ""), names):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            elif refusal := door.refuses(self.connection):
                self.send_error(refusal)
            elif self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                body = text()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE_LATEST)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not logged."""

    return Handler


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
