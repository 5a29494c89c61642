"""Listening for gRPC, or the reason why not: gRPC itself says it in its own log lines only."""

import errno
import socket

import grpc

from pswire.addresses import Address
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.connecting import add_port


class BindError(OSError):
    """The address cannot be listened on."""


def listen(server: grpc.aio.Server, bind: Address, credentials: Credentials = NO_TLS) -> int:
    """Let `server` listen on `bind`; the port, which is the system's choice where that of `bind` is 0.

    Raises BindError when none of the addresses that `bind` stands for can be
    listened on. gRPC listens on whichever of them it can, so that is looked
    at first. Another process may still be faster between this look and gRPC's
    own attempt.
    """
    _check_free(bind)
    try:
        port = add_port(server, str(bind), credentials)
    except RuntimeError as error:
        raise _bind_error(bind) from error
    if port == 0:
        raise _bind_error(bind)
    return port


def _bind_error(bind: Address, reason: str = "is another process using it?") -> BindError:
    return BindError(f"cannot listen on {bind}: {reason}")


def _check_free(bind: Address) -> None:
    try:
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise _bind_error(bind, f"{error.strerror}; is the name right?") from error
    failures = [_failure(family, place) for family, *_, place in found]
    if None in failures:
        return
    taken = next((failure for failure in failures if failure and failure.errno == errno.EADDRINUSE), None)
    if taken is not None:
        raise _bind_error(bind) from taken
    raise _bind_error(bind, f"{failures[0].strerror}" if failures[0] else "it has no address") from failures[
        0
    ]


def _failure(family: int, place: tuple[object, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            # As gRPC does: a port is free again at once when its process has ended.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except OSError as error:
        return error
    return None
