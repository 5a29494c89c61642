"""This process as the servers know it: a random value that tells it from all others, and where it runs."""

import functools
import os
import secrets
import socket

from pswire.logs.lines import escaped

HOST_LIMIT = 80


@functools.cache
def _token(number: int) -> str:
    return secrets.token_hex(16)


def token() -> str:
    """Return the same random text for all sessions of this process. A forked child is another process."""
    return _token(os.getpid())


def place() -> str:
    """Return process and host for people."""
    return f"process {os.getpid()} on host {escaped(socket.gethostname()[:HOST_LIMIT])}"
