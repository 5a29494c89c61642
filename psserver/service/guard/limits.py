"""Limits of a server: calls of each kind, unauthenticated peers by address, workers by descriptors."""

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
    """`value`: seconds, or how many."""

    value: float
    why: str


# A worker has two: its session, and the stream that its payloads, or their socket, depend on.
CALLS: Final = Limit(32_768, "each takes some 30 kB; one more is refused at once rather than left waiting")


# The rows below are of calls and connections that a stranger can hold.
SILENT: Final = Limit(
    512,
    "calls that have said nothing yet, where memory allows that many; one more, and the oldest is cut of the address "
    "that has the most",
)


FOREIGN: Final = Limit(
    64, "calls of gRPC's own services (health, reflection); one more, and the oldest is cut, chosen so, too"
)


STRANGERS_SHARE: Final = Limit(
    1 / 8, "of --memory-limit, for first messages that are under way: each silent call may hold a whole one"
)


NAMES_SHARE: Final = Limit(
    1 / 16, "of --memory-limit, for what is kept of every name that ever joined: it is kept to the job's end"
)


LENT_SHARE: Final = Limit(
    1 / 8,
    "of what the model leaves, for versions that were taken back and are read still: few reads are so slow",
)


MEMBER_CALLS: Final = Limit(
    8,
    "payload calls of one member, where memory allows that many: two are in use, others are left of broken ones",
)


LEAST_SILENT: Final = Limit(
    16, "silent calls, however little memory there is: workers join at the same moment"
)


LEAST_MEMBER_CALLS: Final = Limit(4, "payload calls of one member, however little memory there is")


ANSWERS: Final = Limit(64, "answers of some size that no member asked for and nobody has read yet")


CONNECTIONS: Final = Limit(16_384, "each takes a descriptor; one more is refused, and its worker uses gRPC")


UNAUTHENTICATED: Final = Limit(
    256,
    "connections that have not shown their token yet; one more, and the oldest is cut of the address that has the most",
)


UNAUTHENTICATED_PER_ADDRESS: Final = Limit(
    128, "the same, of one address: half of the room is left for others, whatever one of them does"
)


METRICS_CONNECTIONS: Final = Limit(
    16, "connections to the metrics port: each costs a thread; one more is closed at once"
)


METRICS_PER_ADDRESS: Final = Limit(8, "the same, of one address: a Prometheus elsewhere finds room")


FIRST_MESSAGE: Final = Limit(
    10.0 + CHUNK_SECONDS, "seconds until a call has said something: it may bring a chunk"
)


AWAITING: Final = Limit(
    4096, "calls that wait for the log; of more, the one that wants what is farthest off is refused"
)


UNGRANTED: Final = Limit(
    4, "reads of a version that no ticket has pinned; each may keep a buffer from an update"
)


READS: Final = Limit(
    4, "reads of one worker at once: the present version, the next one, and what broke and is read again"
)


# How much shorter the next unread grant of the same worker may hold up an update.
LEASE_DIVISOR: Final = Limit(4.0, "a worker that does not read is waited for a quarter as long each time")


Peer = TypeVar("Peer", bound=Hashable)


class UnprovenPeers(Generic[Peer]):
    """At most `most` at once, and of one address `of_one` (None: no limit of its own). One too many, and the oldest of
    the address that has the most is cut: whoever comes alone stays.

    Those without an address (empty: a Unix socket's) have no limit of their own.
    """

    def __init__(self, most: int, of_one: int | None = None) -> None:
        self.most, self._of_one = most, of_one
        # In the order in which they came; an address without any is forgotten.
        self._of: dict[str, dict[Peer, None]] = {}
        self._where: dict[Peer, str] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, peer: object) -> bool:
        return peer in self._where

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._where)

    def admit(self, peer: Peer, address: str) -> list[Peer]:
        """It is one of them; those that are to be cut for it are none any more."""
        cut = []
        if self._of_one is not None and address and len(self._of.get(address, ())) >= self._of_one:
            cut.append(self._oldest(address))
        while self._where and len(self._where) >= self.most:
            cut.append(self._oldest(self._noisiest(address)))
        self._of.setdefault(address, {})[peer] = None
        self._where[peer] = address
        return cut

    def discard(self, peer: Peer) -> None:
        """It has ended, or proven something. Any number of times."""
        address = self._where.pop(peer, None)
        if address is None:
            return
        there = self._of[address]
        del there[peer]
        if not there:
            del self._of[address]

    def _noisiest(self, coming: str) -> str:
        """The address that has the most of them, with the one that comes; of several the one that came first."""
        return max(self._of, key=lambda address: len(self._of[address]) + (address == coming))

    def _oldest(self, address: str) -> Peer:
        peer = next(iter(self._of[address]))
        self.discard(peer)
        return peer


def address_of(peer: str) -> str:
    """Of a gRPC peer ("ipv4:192.0.2.1:4321") what all connections of one machine share; empty without a port."""
    kind, _, place = peer.partition(":")
    return place.rpartition(":")[0] if kind in ("ipv4", "ipv6") else ""


# Of a worker: two connections of gRPC, a socket, and three segments where memory is shared.
DESCRIPTORS: Final = 6


# For files, listening sockets, other servers, versions, and strangers who connect.
RESERVED_DESCRIPTORS: Final = 512


# What a worker takes that does nothing, with room to spare; bytes. Its payloads are accounted for by themselves.
WORKER_MEMORY: Final = 512 * 2**10


# Of a server beside its first one: passes, the compiler, checkpoints, metrics, names that are looked up, and those of
# gRPC that do not depend on the number of processors. One that it cannot start ends the process with a signal.
OWN_THREADS: Final = 16


# gRPC starts one for each processor at once, as far as there are so many.
GRPC_LEAST, GRPC_MOST = 4, 16


@dataclass(frozen=True, slots=True)
class Capacity:
    """At most so many workers at once, and what would have to be more for more of them."""

    workers: int
    why: str


def raise_descriptors() -> None:
    """As many as this process may have without asking anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def capacity(memory: int) -> Capacity:
    """`memory`: bytes that models and members may take."""
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
    """Start as many threads as a server needs, and end them. Raises RuntimeError where the system gives fewer."""
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
