"""Whether an address can be listened on, asked before gRPC is, which writes lines of its own when it cannot."""

import errno
import socket

from pswire.addresses import Address


class BindError(OSError):
    """The address cannot be listened on."""


def bind_error(bind: Address, reason: str = "is another process using it?") -> BindError:
    return BindError(f"cannot listen on {bind}: {reason}")


def check_free(bind: Address) -> None:
    """Raises BindError when none of the addresses that `bind` stands for can be listened on.

    gRPC listens on whichever of them it can, and so it is asked here. Another
    process may still be faster between this answer and gRPC's own attempt.
    """
    try:
        found = socket.getaddrinfo(bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise bind_error(bind, f"{error.strerror}; is the name right?") from error
    failures = [_failure(family, place) for family, *_, place in found]
    if None in failures:
        return
    taken = next((failure for failure in failures if failure and failure.errno == errno.EADDRINUSE), None)
    if taken is not None:
        raise bind_error(bind) from taken
    raise bind_error(bind, f"{failures[0].strerror}" if failures[0] else "it has no address") from failures[0]


def _failure(family: int, place: tuple[object, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            # As gRPC does: a port is free again at once when its process has ended.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
    except OSError as error:
        return error
    return None
