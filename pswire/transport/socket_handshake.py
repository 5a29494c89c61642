"""Where the two ends of a line find each other: the server listens and looks who comes, the worker connects.

A Unix socket's name is abstract: no file is left behind, and another network
namespace does not see it.
"""

import os
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import Any, Final

from pswire.transport.framed_socket import INTRODUCTION, FramedSocket, LineError

_CREDENTIALS: Final = struct.Struct("3i")

# The server's side


def listen_here() -> tuple[socket.socket, str]:
    """A listening Unix socket and its unguessable name. Raises LineError where there are no such sockets."""
    name = f"pswire-{secrets.token_hex(16)}"
    listening = _unix()
    try:
        listening.bind(f"\0{name}")
        listening.listen()
    except OSError as error:
        listening.close()
        raise LineError(f"cannot listen on a Unix socket: {error.strerror}") from error
    return listening, name


def listen_at(host: str, port: int) -> socket.socket:
    """A listening socket for other machines; port 0: one that is free. Raises LineError."""
    failed = OSError(0, "it has no address")
    try:
        # "localhost", say, is two addresses, of which a machine may have one.
        for family, place in _places(host, port):
            try:
                dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
                return socket.create_server(place, family=family, dualstack_ipv6=dual)
            except OSError as error:
                failed = error
    except OSError as error:
        failed = error
    raise LineError(f"cannot listen on {host}:{port}: {failed.strerror}") from failed


def _places(host: str, port: int) -> Iterator[tuple[int, Any]]:
    """Every interface is that of IPv4 and of IPv6, by either name; as for gRPC. Raises OSError."""
    if host in ("0.0.0.0", "::"):
        if socket.has_dualstack_ipv6():
            yield socket.AF_INET6, ("::", port)
        yield socket.AF_INET, ("0.0.0.0", port)
        return
    for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        yield family, place


def same_user(connected: socket.socket) -> None:
    """Raises LineError when the other end of a Unix socket belongs to another user."""
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.geteuid():
        raise LineError(f"expected a process of user {os.geteuid()}, got one of user {user}")


# The worker's side


def connect_here(name: str, token: bytes) -> FramedSocket:
    """To the process of this machine that listens under `name`.

    Raises LineError when it cannot be reached, is not of this user, or does not expect `token`.
    """
    made = _unix()
    try:
        made.connect(f"\0{name}")
        same_user(made)
    except LineError:
        made.close()
        raise
    except OSError as error:
        made.close()
        raise LineError(f"no line to {name}: {error.strerror}") from error
    return _introduced(made, token)


def connect_to(host: str, port: int, token: bytes) -> FramedSocket:
    """To the process that listens there. Raises LineError as `connect_here`."""
    try:
        made = socket.create_connection((host, port), timeout=INTRODUCTION)
    except OSError as error:
        raise LineError(f"no line to {host}:{port}: {error.strerror or error}") from error
    return _introduced(made, token)


def _introduced(connected: socket.socket, token: bytes) -> FramedSocket:
    line = FramedSocket(connected)
    welcome = None
    try:
        line.send([token])
        welcome = line.first(most=0)
    finally:
        if welcome is None:
            line.close()
    if welcome is None:
        raise LineError("the server did not let this line in")
    return line


def _unix() -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        raise LineError(f"this system has no Unix sockets: {error}") from error
