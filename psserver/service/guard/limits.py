"""Limits of a server: calls of each kind, peers that have proven nothing by address, and workers by system
resources."""

import os
import resource
import threading
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pswire.patience import CHUNK_SECONDS


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit with its reason. `value`: a number of things, or seconds."""

    value: float
    why: str


# A worker has two calls: its session, and the stream that carries its payloads or authorizes its socket.
CALLS: Final = Limit(
    32_768, "each takes some 30 kB; beyond that a call is refused at once rather than left waiting"
)
# The next rows limit what strangers can hold.
SILENT: Final = Limit(
    512,
    "calls without a first message, if memory allows; beyond that the oldest call of the busiest address is cut",
)
FOREIGN: Final = Limit(
    64,
    "calls of gRPC's own services (health, reflection); beyond that the oldest is cut, chosen the same way",
)
STRANGERS_SHARE: Final = Limit(
    1 / 8, "of --memory-limit, for first messages under way: each silent call may hold a whole one"
)
NAMES_SHARE: Final = Limit(
    1 / 16, "of --memory-limit, for what is kept of each name that ever joined, to the job's end"
)
LENT_SHARE: Final = Limit(
    1 / 8,
    "of what the model leaves, for versions that were taken back and are still being read",
)
MEMBER_CALLS: Final = Limit(
    8,
    "payload calls of one member, if memory allows: two are in use, others are left of broken connections",
)
LEAST_SILENT: Final = Limit(
    16, "silent calls, however little memory there is: workers join at the same moment"
)
LEAST_MEMBER_CALLS: Final = Limit(4, "payload calls of one member, however little memory there is")
ANSWERS: Final = Limit(64, "answers to single calls that nobody has read yet")
CONNECTIONS: Final = Limit(
    16_384, "each takes a descriptor; beyond that a connection is refused, and its worker uses gRPC"
)
UNAUTHENTICATED: Final = Limit(
    256,
    "connections without a token; beyond that the oldest of the busiest address is cut",
)
UNAUTHENTICATED_PER_ADDRESS: Final = Limit(
    128, "the same, of one address: half of the room is left for others"
)
METRICS_CONNECTIONS: Final = Limit(
    16, "connections to the metrics port: each costs a thread; beyond that one is closed at once"
)
METRICS_PER_ADDRESS: Final = Limit(8, "the same, of one address: a Prometheus elsewhere finds room")
FIRST_MESSAGE: Final = Limit(
    10.0 + CHUNK_SECONDS, "seconds for the first message of a call, which may carry a chunk"
)
AWAITING: Final = Limit(
    4096, "calls that wait for the log; beyond that the one that waits for the farthest entry is refused"
)
UNGRANTED: Final = Limit(
    4, "reads of versions that no ticket has pinned; each may keep a buffer from an update"
)
READS: Final = Limit(
    4, "reads of one worker at once: the present version, the next, and repeated reads after a break"
)
# Factor by which each unread grant shortens the time that the next one of this worker may hold up an update.
LEASE_DIVISOR: Final = Limit(
    4.0, "each time a worker does not read, the next wait for it is a quarter as long"
)
Peer = TypeVar("Peer", bound=Hashable)


class UnprovenPeers(Generic[Peer]):
    """Peers that have proven nothing, limited to `most` in all and `of_one` per address (None: no limit per
    address).

    When full, the oldest peer of the busiest address is evicted, so a peer that comes alone stays. Peers without an
    address (of a Unix socket) have no limit per address. Pure.
    """

    def __init__(self, most: int, of_one: int | None = None) -> None:
        self.most, self._of_one = most, of_one
        # Peers by address, oldest first; empty addresses are removed.
        self._of: dict[str, dict[Peer, None]] = {}
        self._where: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, peer: object) -> bool:
        return peer in self._where

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._where)

    def admit(self, peer: Peer, address: str) -> list[Peer]:
        """Admit a peer; return those evicted for it, which the caller must cut."""
        cut = []
        if self._of_one is not None and address and len(self._of.get(address, ())) >= self._of_one:
            cut.append(self._oldest(address))
        while self._where and len(self._where) >= self.most:
            cut.append(self._oldest(self._noisiest(address)))
        self._of.setdefault(address, {})[peer] = None
        self._where[peer] = address
        return cut

    def discard(self, peer: Peer) -> None:
        """Remove a peer that has ended, or has proven something. May be called repeatedly."""
        address = self._where.pop(peer, None)
        if address is None:
            return
        there = self._of[address]
        del there[peer]
        if not there:
            del self._of[address]

    def _noisiest(self, coming: str) -> str:
        """Return the address with the most peers, counting the coming one; the earliest of equals."""
        return max(self._of, key=lambda address: len(self._of[address]) + (address == coming))

    def _oldest(self, address: str) -> Peer:
        peer = next(iter(self._of[address]))
        self.discard(peer)
        return peer


def address_of(peer: str) -> str:
    """Return the address part of a gRPC peer ("ipv4:192.0.2.1:4321"), equal for all connections of a machine; empty
    if it has no port."""
    kind, _, place = peer.partition(":")
    return place.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""


# Descriptors of a worker: two connections of gRPC, a socket, and three segments of shared memory.
DESCRIPTORS: Final = 6
# Descriptors for files, listening sockets, other servers, versions, and strangers that connect.
RESERVED_DESCRIPTORS: Final = 512
# Bytes that an idle worker takes, with a margin. Its payloads have their own account.
WORKER_MEMORY: Final = 512 * 2**10
# Threads of a server beside its first: passes, the compiler, checkpoints, metrics, name lookups, and those of gRPC
# that do not depend on the number of processors. A thread that cannot start later would end the process with a
# signal.
OWN_THREADS: Final = 16
# gRPC starts one thread per processor at once, within these bounds.
GRPC_LEAST, GRPC_MOST = 4, 16


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of workers that fit at once, and the resource that limits it."""

    workers: int
    why: str


def raise_descriptors() -> None:
    """Raise the limit of descriptors to what this process may have without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def capacity(memory: int) -> Capacity:
    """Return how many workers fit. `memory`: bytes that models and members may take."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    by_memory = Capacity(max(1, memory // WORKER_MEMORY), f"--memory-limit is {memory / 2**20:.0f} MiB")
    if descriptors == resource.RLIM_INFINITY:
        return by_memory
    usual = max(1, (descriptors - RESERVED_DESCRIPTORS) // DESCRIPTORS)
    by_descriptors = Capacity(
        usual, f"{descriptors} descriptors (ulimit -n), of which each takes {DESCRIPTORS}"
    )
    return min(by_memory, by_descriptors, key=lambda found: found.workers)


def check_threads() -> None:
    """Start as many threads as a server needs, and end them. Raises RuntimeError if the system allows fewer."""
    processors = min(max(os.cpu_count() or 1, GRPC_LEAST), GRPC_MOST)
    over, started = threading.Event(), []
    try:
        for _ in range(OWN_THREADS + processors):
            started.append(threading.Thread(target=over.wait, name="trial", daemon=True))
            started[-1].start()
    except RuntimeError as error:
        needed = OWN_THREADS + processors + 1
        raise RuntimeError(f"expected room for {needed} threads, got {len(started)}: {error}") from error
    finally:
        over.set()
        for thread in started:
            with suppress(RuntimeError):
                thread.join()
