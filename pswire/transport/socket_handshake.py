"""The handshake of a socket: the server listens and checks the peer, whose first frame proves who it is.

A Unix socket's name is abstract: no file is left behind, and other network namespaces cannot see it.
"""

import os
import secrets
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any, Final

from pswire.patience import REQUEST_WAITS
from pswire.transport.framed_socket import HANDSHAKE_TIMEOUT, FramedSocket, SocketError
from pswire.transport.tls_socket import TlsSocket

_CREDENTIALS: Final = struct.Struct("3i")

# Connections that the system queues until they are accepted. The client of a further one retries a second later.
BACKLOG: Final = 1024
# Bytes of the frame that accepts a connection.
ANSWER_BYTES: Final = 2**16

# The side that listens


def listen_unix() -> tuple[socket.socket, str]:
    """Return a listening Unix socket and its unguessable name. Raises SocketError if the system has none."""
    name = f"pswire-{secrets.token_hex(16)}"
    listening = _unix()
    try:
        listening.bind(f"\0{name}")
        listening.listen()
    except OSError as error:
        listening.close()
        raise SocketError(f"cannot listen on a Unix socket: {error.strerror}") from error
    return listening, name


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening socket for other machines; port 0: a free one. Raises SocketError."""
    failed = OSError(0, "it has no address")
    try:
        # A name such as "localhost" has two addresses, of which a machine may have only one.
        for family, place in _places(host, port):
            try:
                dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
                return socket.create_server(place, family=family, dualstack_ipv6=dual, backlog=BACKLOG)
            except OSError as error:
                failed = error
    except OSError as error:
        failed = error
    raise SocketError(f"cannot listen on {host}:{port}: {failed.strerror}") from failed


def _places(host: str, port: int) -> Iterator[tuple[int, Any]]:
    """Yield addresses to listen on. As in gRPC, every interface means IPv4 and IPv6, by either name. Raises OSError."""
    if host in ("0.0.0.0", "::"):
        if socket.has_dualstack_ipv6():
            yield socket.AF_INET6, ("::", port)
        yield socket.AF_INET, ("0.0.0.0", port)
        return
    for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        yield family, place


def check_same_user(connected: socket.socket) -> None:
    """Raise SocketError if the other end of a Unix socket belongs to another user."""
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.geteuid():
        raise SocketError(f"expected a process of user {os.geteuid()}, got one of user {user}")


# The side that connects


def connect_unix(name: str, first: bytes) -> tuple[FramedSocket, bytes]:
    """Connect to the process of this machine that listens under `name`, and send the first frame; return its answer,
    too.

    Raises SocketError if it cannot be reached, is not of this user, or does not answer in time.
    """
    made = _unix()
    try:
        made.connect(f"\0{name}")
        check_same_user(made)
    except SocketError:
        made.close()
        raise
    except OSError as error:
        made.close()
        if isinstance(error, ConnectionRefusedError):
            raise SocketError("the server is on another machine, or in another network namespace") from error
        raise SocketError(f"no connection to {name}: {error.strerror}") from error
    return _accepted(FramedSocket(made), first)


def connect_tcp(
    host: str,
    port: int,
    first: bytes,
    context: ssl.SSLContext | None = None,
    timeout: float = HANDSHAKE_TIMEOUT,
) -> FramedSocket:
    """Connect to the process that listens there, within `timeout` seconds, with TLS if there is a `context`, and send
    the first frame. A connection without an acknowledgement for `timeout` counts as dead.

    Raises SocketError as `connect_unix`, and for a server without a certificate for `host`.
    """
    try:
        made = socket.create_connection((host, port), timeout=min(timeout, HANDSHAKE_TIMEOUT))
    except OSError as error:
        raise SocketError(f"no connection to {host}:{port}: {error.strerror or error}") from error
    connected = made if context is None else _secured(made, context, host, port)
    return _accepted(FramedSocket(connected, timeout), first)[0]


def _secured(made: socket.socket, context: ssl.SSLContext, host: str, port: int) -> TlsSocket:
    connected = TlsSocket(made, context, host)
    try:
        connected.settimeout(HANDSHAKE_TIMEOUT)
        connected.shake()
    except OSError as error:
        made.close()
        raise SocketError(f"no TLS with {host}:{port}: {_reason(error)}") from error
    return connected


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return error.strerror or str(error) or "no answer in time"


def _accepted(connection: FramedSocket, first: bytes) -> tuple[FramedSocket, bytes]:
    answer = None
    try:
        connection.send([first])
        # It may catch up first, wait for the end of an older connection, and make the memory that it lends.
        answer = connection.first(ANSWER_BYTES, REQUEST_WAITS)
    finally:
        if answer is None:
            connection.close()
    if answer is None:
        raise SocketError("the server did not accept this connection")
    return connection, answer


def _unix() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        raise SocketError(f"this system has no Unix sockets: {error}") from error
