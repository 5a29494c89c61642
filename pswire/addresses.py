"""Addresses of processes: `host:port` and lists of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HOST = re.compile(r"[A-Za-z0-9._-]+")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")


class AddressError(ValueError):
    """An address list or TF_CONFIG that cannot be understood. The text names the wrong part."""


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP endpoint. `port` 0 asks the system for a free port; IPv6 hosts are stored without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `host:port` or `[ipv6]:port`. Raises AddressError."""
    stripped = text.strip()
    host, colon, port = stripped.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise AddressError(f"expected host:port, got {text!r}; write an IPv6 address in brackets: [::1]:7070")
    if bracketed:
        host = host[1:-1]
    if not colon or not (_IPV6 if bracketed else _HOST).fullmatch(host):
        raise AddressError(f"expected host:port, got {text!r}")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise AddressError(f"expected a port from 0 to 65535 after the last colon, got {port!r} in {text!r}")
    return Address(host, int(port))


def parse_hosts(text: str) -> tuple[Address, ...]:
    """Parse a comma-separated list of addresses, in task order.

    Raises AddressError if the list is empty, an entry is not `host:port`, or an address (other than one with port 0)
    occurs twice.
    """
    if not text.strip():
        raise AddressError("expected addresses such as h0:7070,h1:7070, got nothing")
    addresses = tuple(parse_address(part) for part in text.split(","))
    refuse_duplicates(addresses)
    return addresses


def refuse_duplicates(addresses: Sequence[Address]) -> None:
    """Raise AddressError if an address (other than one with port 0) occurs twice."""
    for index, address in enumerate(addresses):
        if address.port and address in addresses[:index]:
            raise AddressError(f"{address} is listed twice; each server needs its own address")
