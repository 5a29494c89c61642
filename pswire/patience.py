"""How long one end waits for the other, in one place.

Two ends that watch each other must act in this order: each notices that a connection is dead; the one that dials does
so again; only then is it given up. Every such time derives from `worker_timeout` (seconds that others wait for a silent
worker), the slowest link, or the times below, and counts on `pswire.running`, so no pause of a process is a silence of
others. `tests/pswire/test_patience.py` holds the order. A transfer over a slow link is not silence, so a receiver adds
the time that its bytes take at `SLOWEST_LINK`.
"""

from typing import Final

# The slowest link over which a payload may take its time, in bytes per second: about 1 Mbit/s.
SLOWEST_LINK: Final = 128 * 1024
# The time of one message of a payload, of at most 2 MiB.
CHUNK_SECONDS: Final = 2 * 2**20 / SLOWEST_LINK
# Seconds; used until a server has announced its worker_timeout.
UNKNOWN_TIMEOUT: Final = 10.0
# Seconds that servers wait for each other: for one whose connection broke, or that does not answer on one that stands.
SERVER_AWAY: Final = 60.0
# Seconds that a worker waits for a server, unless it was started with another `--server-timeout`.
SERVER_TIMEOUT: Final = 60.0

# Seconds that a server lets a request wait: for room, or until it has executed what the request needs.
REQUEST_WAITS: Final = 30.0
# Bytes of the largest piece of a payload that is sent before the next one.
PIECE: Final = 4 * 2**20

# Parts of `worker_timeout`. A connection on which nothing came for PING is probed. A worker gives the answer
# WORKER_ANSWER, the server that decides who is lost SERVER_ANSWER; then that worker has GRACE to come back.
PING: Final = 0.15
WORKER_ANSWER: Final = 0.3
SERVER_ANSWER: Final = 0.45
GRACE: Final = 1 / 3
# The longest pause between two attempts of a worker to reach a server that does not answer; and its limit in seconds.
PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


def ping_interval(worker_timeout: float) -> float:
    """Return the seconds without received data after which a connection is probed."""
    return PING * worker_timeout


def silence(worker_timeout: float) -> float:
    """Return the seconds after which a connection that carries nothing counts as dead for a worker."""
    return WORKER_ANSWER * worker_timeout


def grace(worker_timeout: float) -> float:
    """Return the seconds that a broken connection has to come back."""
    return GRACE * worker_timeout


def longest_pause(worker_timeout: float) -> float:
    """Return the most seconds between two attempts to reach a server."""
    return min(PAUSE * worker_timeout, LONGEST_PAUSE)


def refused_limit(worker_timeout: float) -> float:
    """Return the seconds after which a server is lost at whose address no process listens."""
    return grace(worker_timeout)


def coordinator_away(worker_timeout: float) -> float:
    """Return the seconds that a server waits for server 0, whose connection broke.

    Server 0 dials again for a shorter time, although either may notice first."""
    return SERVER_AWAY + 2 * worker_timeout


def stuck(worker_timeout: float) -> float:
    """Return the seconds after which a request under way is stuck in which no piece of a payload moved.

    A payload has as much for each piece: what its bytes take over the slowest link. Its answer may wait at the server.
    """
    return REQUEST_WAITS + transfer(PIECE, worker_timeout)


def transfer(nbytes: int, worker_timeout: float) -> float:
    """Return the seconds that `nbytes` may take before their receiver counts as stalled."""
    return worker_timeout + nbytes / SLOWEST_LINK
