"""How long one end waits for the other: every such time derives from `worker_timeout` and the slowest link.

`worker_timeout` (seconds) is how long others wait for a silent worker. A transfer over a slow link is not silence, so
a receiver adds the time that its bytes take at `SLOWEST_LINK`.
"""

from typing import Final

# The slowest link over which a payload may take its time, in bytes per second: about 1 Mbit/s.
SLOWEST_LINK: Final = 128 * 1024
# The time of one message of a payload, of at most 2 MiB.
CHUNK_SECONDS: Final = 2 * 2**20 / SLOWEST_LINK
# Seconds; used until a server has announced its worker_timeout.
UNKNOWN_TIMEOUT: Final = 10.0


def ping_interval(worker_timeout: float) -> float:
    """Return the seconds without received data after which a connection is probed."""
    return 0.3 * worker_timeout


def transfer(nbytes: int, worker_timeout: float) -> float:
    """Return the seconds that `nbytes` may take before their receiver counts as stalled."""
    return worker_timeout + nbytes / SLOWEST_LINK
