"""How many workers a server has room for at once: by the descriptors and the memory that it may have."""

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

# Of a worker: two connections of gRPC, a socket, and three segments where memory is shared.
DESCRIPTORS: Final = 6
# For files, listening sockets, other servers, versions, and strangers who connect.
RESERVED: Final = 512
# What a worker takes that does nothing, with room to spare; bytes. Its payloads are accounted for by themselves.
MEMORY: Final = 512 * 2**10


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
    by_memory = Capacity(max(1, memory // MEMORY), f"--memory-limit is {memory / 2**20:.0f} MiB")
    if descriptors == resource.RLIM_INFINITY:
        return by_memory
    usual = max(1, (descriptors - RESERVED) // DESCRIPTORS)
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
