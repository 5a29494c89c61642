"""Ports for daemons that are told theirs before they begin.

A port that the system has chosen and that was given back may be somebody else's by then: of a server that asked for
any, or of a mere connection. So these are none that the system gives by itself.
"""

import random
import socket
from pathlib import Path

# The first and the last that it gives by itself.
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Below are those of well-known services.
LOWEST, HIGHEST = 10_000, 65_535


def unclaimed(count: int) -> list[int]:
    """So many, of which nobody has one on 127.0.0.1 now."""
    first, last = map(int, RANGE.read_text().split())
    outside = [port for port in range(LOWEST, HIGHEST + 1) if not first <= port <= last]
    found: list[int] = []
    for port in random.SystemRandom().sample(outside, len(outside)):
        if len(found) == count:
            break
        if _free(port):
            found.append(port)
    assert len(found) == count, f"expected {count} ports outside {first} to {last}, got {len(found)}"
    return found


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
