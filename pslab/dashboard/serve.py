"""The process of the page: a listening socket, and the web server until Ctrl-C."""

import os
import secrets
import socket
from collections.abc import Callable
from importlib.util import find_spec

from pslab.dashboard.access import is_loopback
from pswire.extras import how_to_install

PORT = 8765


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


def link(listening: socket.socket, host: str, token: str) -> str:
    """Return the address to open in a browser."""
    port = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def serve(
    app: object,
    sock: socket.socket,
    ready: Callable[[], None],
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    `ready` is called when pages can be loaded, `ending` before open requests are cut.
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
        http="h11",
        ws="none",
        server_header=False,
    )

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending()
            await super().shutdown(sockets)

    Announcing(config).run([sock])
