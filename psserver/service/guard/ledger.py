"""An account of the memory that peers can make a server use: how much, what for, and the limit."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 2**20
# Share of the memory of the machine or container.
SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A summary of an account. `parts`: bytes by kind, the largest first; together they are `total`."""

    limit: int
    total: int
    parts: Mapping[str, int]


class MemoryLedger:
    """Bytes held by this server, by kind. Any thread may call it; `_lock` guards what was taken.

    Memory enters the account in two ways. What is requested beforehand is taken and given back. What changes with
    every message is not recorded: a source counts it when somebody asks, so the account always equals what is
    there.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        # Sources of memory that is not recorded: total bytes, and bytes by kind.
        self._sources: list[tuple[Callable[[], int], Callable[[], Mapping[str, int]]]] = []

    def watch(self, nbytes: Callable[[], int], kinds: str | Callable[[], Mapping[str, int]]) -> None:
        """Add a source, before any other call. `nbytes` must be fast and callable from any thread; `kinds`: what it
        is, or what lists the bytes by kind."""
        parts = kinds if callable(kinds) else lambda: {kinds: nbytes()}
        self._sources.append((nbytes, parts))

    def take(self, kind: str, nbytes: int) -> str | None:
        """Reserve `nbytes`; return None, or the reason why there is no room, with nothing changed."""
        with self._lock:
            total = self._sum()
            if total + nbytes > self.limit:
                return (
                    f"expected at most {self.limit / MIB:.1f} MiB in all (--memory-limit), of which "
                    f"{total / MIB:.1f} are taken, got {nbytes / MIB:.1f} more for {kind}"
                )
            self._taken[kind] += nbytes
        return None

    def put(self, kind: str, nbytes: int) -> None:
        """Set the bytes of this kind to `nbytes`, whatever they were before."""
        with self._lock:
            self._taken[kind] = nbytes

    def give(self, kind: str, nbytes: int) -> None:
        """Release `nbytes`."""
        with self._lock:
            self._taken[kind] -= nbytes

    def _sum(self) -> int:
        return self._taken.total() + sum(nbytes() for nbytes, _ in self._sources)

    @property
    def total(self) -> int:
        with self._lock:
            return self._sum()

    def use(self) -> MemoryUse:
        """Return a summary."""
        with self._lock:
            found = self._taken.copy()
        for _, parts in self._sources:
            found.update(parts())
        largest = {kind: nbytes for kind, nbytes in found.most_common() if nbytes}
        return MemoryUse(self.limit, sum(largest.values()), largest)


def default_limit() -> int:
    """Return the default of --memory-limit: a share of the memory of the machine or container."""
    allowed = [_number(path) for path in _cgroup_limits()]
    pages = [
        line.split() for line in _text(Path("/proc/meminfo")).splitlines() if line.startswith("MemTotal")
    ]
    allowed += [1024 * int(pages[0][1])] if pages else []
    return int(SHARE * min((each for each in allowed if each), default=2**40))


_CGROUPS: Final = Path("/sys/fs/cgroup")


def _cgroup_limits() -> Iterator[Path]:
    """Yield files that may hold a limit of this process: of its cgroup and all parents, in version 1 and 2."""
    yield from (_CGROUPS / "memory.max", _CGROUPS / "memory" / "memory.limit_in_bytes")
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
