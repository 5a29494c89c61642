"""The process of the page: a listening socket, the web server until Ctrl-C, and limits on unfinished requests."""

import asyncio
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pslab.dashboard.access import is_loopback
from psserver.service.guard.limits import UnprovenPeers
from pswire.extras import how_to_install

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

PORT = 8765
# Seconds for a whole request, which comes from a browser and has no body.
REQUEST_TIMEOUT = 5.0
# Unfinished requests at most. Beyond that, the oldest one of the busiest address is closed.
UNFINISHED_LIMIT = 128


class ServeError(OSError):
    """The process cannot listen, or lacks a package; the message says why and what to do."""


def check_installed() -> None:
    """Raise ServeError with what to install, if the web server is missing."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ServeError(f"the dashboard needs a web server: {how_to_install('dashboard')}")


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ServeError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(found[0], socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
        made.listen(128)
    except OSError as error:
        advice = "; --port 0 takes a free one" if port else ""
        raise ServeError(f"cannot listen on {host}:{port}: {error.strerror or error}{advice}") from error
    return made


def token_for(host: str) -> str:
    """Return a token for other machines; empty on loopback, where the Host header and the browser's rules suffice."""
    return "" if is_loopback(host) else secrets.token_urlsafe(18)


def link(listening: socket.socket, host: str, token: str, *, encrypted: bool = False) -> str:
    """Return the address to open in a browser."""
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if encrypted else "http"
    return f"{scheme}://{shown}:{port}/" + (f"?token={token}" if token else "")


def serve(
    app: object,
    sock: socket.socket,
    ready: Callable[[], None],
    context: ssl.SSLContext | None = None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    `ready` is called when pages can be loaded, `ending` before open requests are cut. `context`: for TLS.
    """
    import uvicorn

    # Servers on this machine have priority.
    os.nice(10)
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        # Event streams do not end by themselves.
        timeout_graceful_shutdown=1,
        limit_concurrency=256,
        http=protocol(),
        ws="none",
        server_header=False,
    )

    config.load()
    config.ssl = context

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending()
            await super().shutdown(sockets)

    Announcing(config).run([sock])


def protocol() -> type["H11Protocol"]:
    """Return uvicorn's protocol with limits on unfinished requests, which its connections share.

    Uvicorn has no deadline for a request, and counts a connection without one among those that it serves.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    unfinished: UnprovenPeers[H11Protocol] = UnprovenPeers(UNFINISHED_LIMIT)

    class LimitedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self._expect_request()
            else:
                self._forget()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            """Start the deadline of a request. Received bytes do not extend it."""
            if self._deadline is None and not self.transport.is_closing():
                self._deadline = self.loop.call_later(REQUEST_TIMEOUT, self.transport.close)
                address = self.client[0] if self.client else ""
                for oldest in unfinished.admit(self, address):
                    oldest.transport.abort()

        def _forget(self) -> None:
            unfinished.discard(self)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return LimitedProtocol
