"""The process of the page: a listening socket, the web server, and its end at Ctrl-C."""

import os
import secrets
import socket
import ssl
from collections.abc import Callable
from importlib.util import find_spec

from pslab.dashboard.access import is_loopback

PORT = 8765


class ServeError(OSError):
    """It cannot listen there; the text says why and what to do."""


def check_installed() -> None:
    """Raises ServeError, which says what to install."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ServeError("the dashboard needs a web server: pip install 'paramserver[dashboard]'")


def listening(host: str, port: int) -> socket.socket:
    """Raises ServeError."""
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
    """Other machines need one; on this machine the Host header and the browser's own rules are enough."""
    return "" if is_loopback(host) else secrets.token_urlsafe(18)


def link(listening: socket.socket, host: str, token: str, *, encrypted: bool = False) -> str:
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
    """Until SIGINT or SIGTERM. `ready` is called when pages are answered, `ending` before those that are still waited
    for are cut. `context`: of TLS."""
    import uvicorn

    from pslab.dashboard.unfinished import protocol

    # Where a server of this machine wants the processor, the page waits.
    os.nice(10)
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="warning",
        access_log=False,
        # Viewers' streams have no end of their own.
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
