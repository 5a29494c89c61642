"""What the machine gives a server: descriptors, threads and memory."""

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# Descriptors of a worker: two connections of gRPC, a socket, and two segments of shared memory, each a file and its
# mapping.
DESCRIPTORS: Final = 7
# Descriptors for files, listening sockets, other servers, versions, and strangers that connect.
RESERVED_DESCRIPTORS: Final = 512
# Threads of a server beside its first: passes, what tells of long work, checkpoints, name lookups, and those
# of gRPC that do not depend on the number of processors. A thread that cannot start later would end the process with
# a signal.
OWN_THREADS: Final = 16
# gRPC starts one thread per processor at once, within these bounds.
GRPC_LEAST, GRPC_MOST = 4, 16
# Share of the memory of the machine or container that --memory-limit is by default.
SHARE: Final = 0.8
_CGROUPS: Final = Path("/sys/fs/cgroup")


def raise_descriptors() -> None:
    """Raise the limit of descriptors to what this process may have without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_workers() -> int:
    """Return for how many workers at once there are descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 2**30
    return max(1, (descriptors - RESERVED_DESCRIPTORS) // DESCRIPTORS)


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


def default_limit() -> int:
    """Return the default of --memory-limit: a share of the memory of the machine or container."""
    allowed = [_number(path) for path in _cgroup_limits()]
    pages = [
        line.split() for line in _text(Path("/proc/meminfo")).splitlines() if line.startswith("MemTotal")
    ]
    allowed += [1024 * int(pages[0][1])] if pages else []
    return int(SHARE * min((each for each in allowed if each), default=2**40))


def _cgroup_limits() -> Iterator[Path]:
    """Yield files that may hold a limit of this process: of its cgroup and all parents, in version 1 and 2."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "memory"):
            continue
        root, name = (
            (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        )
        here = root / path.lstrip("/")
        yield from (folder / name for folder in (here, *here.parents) if folder.is_relative_to(root))


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
