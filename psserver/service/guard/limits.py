"""Limits of a server: calls of each kind, peers that have proven nothing, and workers by system resources."""

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


# What one process may hold is bounded; strangers are not kept apart from each other. Without TLS, bind to the loopback
# or to a trusted network.

# A worker has two calls: its session, and the stream that carries its payloads or authorizes its socket.
CALLS: Final = Limit(
    32_768, "each takes some 30 kB; beyond that a call is refused at once rather than left waiting"
)
CONNECTIONS: Final = Limit(
    16_384, "each takes a descriptor; beyond that a connection is refused, and its worker uses gRPC"
)
UNPROVEN: Final = Limit(
    128,
    "calls without a first message or of gRPC's own services, and as many connections without a token: each may hold "
    "a message of 4 MiB; beyond that the oldest is cut",
)
METRICS_CONNECTIONS: Final = Limit(
    16, "connections to the metrics port: each costs a thread; beyond that one is closed at once"
)
FIRST_MESSAGE: Final = Limit(
    10.0 + CHUNK_SECONDS, "seconds for the first message of a call, which may carry a chunk"
)
NAMES: Final = Limit(
    64 * 2**20, "bytes that are kept of all names that ever joined, to the job's end: some 40,000"
)
MEMBER_CALLS: Final = Limit(
    4, "payload calls of one member: two are in use, others are left of broken connections"
)
READS: Final = Limit(
    4, "reads of one worker at once: the present version, the next, and repeated reads after a break"
)
Peer = TypeVar("Peer", bound=Hashable)


class Unproven(Generic[Peer]):
    """Peers that have proven nothing, at most so many. Pure."""

    def __init__(self, most: int = int(UNPROVEN.value)) -> None:
        self._most = most
        # The oldest first.
        self._peers: dict[Peer, None] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, peer: object) -> bool:
        return peer in self._peers

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def admit(self, peer: Peer) -> list[Peer]:
        """Admit a peer; return the oldest ones beyond the limit, which the caller must cut."""
        self._peers[peer] = None
        cut = list(self._peers)[: max(0, len(self._peers) - self._most)]
        for each in cut:
            self.discard(each)
        return cut

    def discard(self, peer: Peer) -> None:
        """Remove a peer that has ended, or has proven something. May be called repeatedly."""
        self._peers.pop(peer, None)


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
# Threads of a server beside its first: passes, what tells of long work, checkpoints, metrics, name lookups, and those
# of gRPC that do not depend on the number of processors. A thread that cannot start later would end the process with
# a signal.
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
