"""Certificates for tests, by the authority that `ps-lab certs` and launchers use."""

import datetime
import ssl
from functools import cache

import pslab.authority as made
from pslab.authority import Authority
from pswire.security.identity import Identity, new_context
from pswire.security.names import Role


@cache
def _made(cluster: str) -> Authority:
    return Authority.make(cluster)


def authority(cluster: str = "lab") -> Authority:
    """One for each name."""
    return _made(cluster)


def server(name: str = "server-0", cluster: str = "lab") -> Identity:
    """For 127.0.0.1 and localhost."""
    return authority(cluster).issue(Role.SERVER, name)


def worker(name: str = "w0", cluster: str = "lab") -> Identity:
    return authority(cluster).issue(Role.WORKER, name)


def nobody() -> ssl.SSLContext:
    """Of a client that believes the authority and shows no certificate."""
    context = new_context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority().cert.decode())
    return context


def ended(role: Role, name: str) -> Identity:
    """A certificate that was good until a minute ago."""
    return authority().issue(role, name, valid=datetime.timedelta(minutes=-1))


def future(name: str) -> Identity:
    """A worker's, good from a day on."""
    before, made.SKEW = made.SKEW, datetime.timedelta(days=-1)
    try:
        return authority().issue(Role.WORKER, name)
    finally:
        made.SKEW = before
