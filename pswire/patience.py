"""How long one end waits for the other: every such time comes from `worker_timeout` and the slowest link, here.

`worker_timeout` (seconds) says how long others wait for a worker that is silent. What is under way over a slow link
is not silent: whoever waits for bytes adds the time that they take at `SLOWEST_LINK`.
"""

from typing import Final

# Bytes per second of the slowest link that a payload is waited for on: about 1 Mbit/s.
SLOWEST_LINK: Final = 128 * 1024
# For one message of a payload, of at most 2 MiB.
CHUNK_SECONDS: Final = 2 * 2**20 / SLOWEST_LINK
# Before a server has said its worker_timeout; seconds.
UNKNOWN_TIMEOUT: Final = 10.0


def ping_interval(worker_timeout: float) -> float:
    """Seconds without anything received, after which a connection is probed."""
    return 0.3 * worker_timeout


def transfer(nbytes: int, worker_timeout: float) -> float:
    """Seconds that `nbytes` may take until their receiver counts as one that does not receive."""
    return worker_timeout + nbytes / SLOWEST_LINK
