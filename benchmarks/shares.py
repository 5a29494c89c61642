"""How much of what the machine can do at most a peer reaches."""

from benchmarks.loads import GRPC, SHM, SOCKET
from benchmarks.rounds import Row
from benchmarks.samples import Samples

# Through shared memory weights are read in place, the gradient is copied once
# into its staging slot and read once to be checked, and plain SGD reads two
# words and writes one: as much traffic as half a copy, and as one and a half.
COPIES = 3.0


def share(row: Row, peer: str) -> Samples | None:
    """Over TCP: GB/s both ways against the one-way rate of a bare socket. Shared memory: the time that its
    copies cost at memcpy speed against a step's time. None where neither limit is the peer's."""
    if not row.load.nbytes:
        return None
    if peer in (GRPC, SOCKET):
        return row.moved(peer).per(row.limit("socket"))
    if peer == SHM:
        copied = Samples(tuple(COPIES / 2 * value for value in row.moved(peer).values))
        return copied.per(row.limit("memcpy"))
    return None


# Wanted at 67 MB, of each.
TARGET = 0.6
