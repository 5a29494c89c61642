"""The connections of the metrics port: few at once, and each for a bounded time, whoever comes."""

import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Final

from psserver.service.guard.table import METRICS_CONNECTIONS, METRICS_OF_ONE

log = logging.getLogger("ps-server")

# Served at once, and of one address. A Prometheus needs one.
MOST: Final = int(METRICS_CONNECTIONS.value)
MOST_OF_ONE: Final = int(METRICS_OF_ONE.value)
# Seconds from the accept to the end of a connection, whatever it sends.
DEADLINE: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Served:
    """`due`: when it is cut; seconds, monotonic."""

    request: socket.socket
    address: str
    thread: threading.Thread
    due: float


class ConnectionServer(ThreadingMixIn, HTTPServer):
    """Serves at most MOST connections at once, of one address MOST_OF_ONE, each for at most `deadline` seconds; further
    ones are closed at once.

    The thread of `serve_forever` takes, counts and cuts; the threads of connections only serve and close.
    Raises OSError where the address cannot be had.
    """

    daemon_threads = True
    allow_reuse_address = False
    # A flood is taken and closed sooner than it keeps anybody waiting.
    request_queue_size = 128

    def __init__(
        self,
        bind: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        deadline: float = DEADLINE,
        contexts: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`contexts`: that of TLS for a new connection; None without TLS."""
        self._contexts = contexts
        self._deadline = deadline
        self._served: list[_Served] = []
        # Nobody shuts down a descriptor that a closing thread has just given back to the system.
        self._closing = threading.Lock()
        [found, *_] = socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)
        self.address_family = found[0]
        super().__init__((bind, port), handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self._served = [served for served in self._served if served.thread.is_alive()]
        same = sum(served.address == client_address[0] for served in self._served)
        return len(self._served) < MOST and same < MOST_OF_ONE

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's thread. The handshake ends with the connection's own time."""
        if self._contexts is None:
            super().finish_request(request, client_address)
            return
        context = self._contexts()
        # Cutting closes the plain socket underneath: it keeps its descriptor, and TLS has a copy.
        with request.dup() as copy, context.wrap_socket(copy, server_side=True) as tls:
            super().finish_request(tls, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Where no thread can be started the caller closes this connection, and goes on."""
        due = time.monotonic() + self._deadline
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address),
            name="metrics-connection", daemon=True,
        )  # fmt: skip
        thread.start()
        self._served.append(_Served(request, client_address[0], thread, due))

    def service_actions(self) -> None:
        now = time.monotonic()
        for served in self._served:
            if now >= served.due:
                self._cut(served.request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Mostly a peer that has gone: nothing that anybody has to do something about."""
        log.debug("metrics: a connection ended: %r", sys.exception())

    def shutdown_request(self, request: Any) -> None:
        with self._closing:
            super().shutdown_request(request)

    def server_close(self) -> None:
        """After `shutdown`: nobody else looks at deadlines any more."""
        super().server_close()
        for served in self._served:
            self._cut(served.request)

    def _cut(self, request: socket.socket) -> None:
        """Its thread wakes up, in the middle of a read or a write, and closes it."""
        with self._closing, suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
