"""An account of the memory that peers can make a server use: how much, for whom, and the limit."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 2**20
# Share of the memory of the machine or container.
SHARE: Final = 0.8
# Holders that are no member; no worker can have these names.
MODEL: Final = ""
STRANGERS: Final = "*"
# Parts named in an account. The rest is one sum, so that the size does not depend on the number of members.
MOST_PARTS: Final = 12


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one kind that are held for `member`, for the model or for strangers."""

    member: str
    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A summary of an account. `parts`: the largest first; `rest`: bytes of all others. Together they are `total`."""

    limit: int
    total: int
    parts: tuple[Held, ...]
    rest: int


class MemoryLedger:
    """Bytes held by this server, by member and kind. Any thread may call it; `_lock` guards what was taken.

    Memory enters the account in two ways. What is requested beforehand is taken and given back. What changes with
    every message is not recorded: a source counts it when somebody asks, so the account always equals what is
    there.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._total = 0
        # Sources of memory that is not recorded: total bytes, and bytes by member and kind.
        self._sources: list[tuple[Callable[[], int], Callable[[], Iterable[Held]]]] = []

    def watch(self, nbytes: Callable[[], int], held: Callable[[], Iterable[Held]]) -> None:
        """Add a source, before any other call. `nbytes` must be fast and callable from any thread; `held` lists the
        parts."""
        self._sources.append((nbytes, held))

    def take(self, member: str, kind: str, nbytes: int, share: int | None = None) -> str | None:
        """Reserve `nbytes`; return None, or the reason why there is no room, with nothing changed.

        `share`: the most that this member may hold in all.
        """
        with self._lock:
            total = self._sum()
            if total + nbytes > self.limit:
                return (
                    f"expected at most {self.limit / MIB:.1f} MiB in all (--memory-limit), of which "
                    f"{total / MIB:.1f} are taken, got {nbytes / MIB:.1f} more for {kind}"
                )
            mine = sum(size for (who, _), size in self._taken.items() if who == member)
            if share is not None and mine + nbytes > share:
                return (
                    f"expected at most {share / MIB:.1f} MiB for each member (--memory-limit less the model's, by "
                    f"members), of which {member or 'it'} has {mine / MIB:.1f}, got {nbytes / MIB:.1f} more for {kind}"
                )
            self._add(member, kind, nbytes)
        return None

    def put(self, member: str, kind: str, nbytes: int) -> None:
        """Set the bytes of this kind to `nbytes`, whatever they were before."""
        with self._lock:
            self._add(member, kind, nbytes - self._taken[member, kind])

    def give(self, member: str, kind: str, nbytes: int) -> None:
        """Release `nbytes`."""
        with self._lock:
            self._add(member, kind, -nbytes)

    def _add(self, member: str, kind: str, nbytes: int) -> None:
        self._taken[member, kind] += nbytes
        self._total += nbytes
        if not self._taken[member, kind]:
            del self._taken[member, kind]

    def _sum(self) -> int:
        return self._total + sum(nbytes() for nbytes, _ in self._sources)

    @property
    def total(self) -> int:
        with self._lock:
            return self._sum()

    def of(self, member: str) -> dict[str, int]:
        """Return the bytes of a member by kind."""
        return {kind: nbytes for (who, kind), nbytes in self._all().items() if who == member}

    def use(self, most: int = MOST_PARTS) -> MemoryUse:
        """Return a summary with at most `most` named parts."""
        found = self._all()
        largest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most]
        parts = tuple(Held(member, kind, nbytes) for (member, kind), nbytes in largest)
        total = found.total()
        return MemoryUse(self.limit, total, parts, total - sum(part.nbytes for part in parts))

    def _all(self) -> Counter[tuple[str, str]]:
        with self._lock:
            found = self._taken.copy()
        for _, held in self._sources:
            for part in held():
                if part.nbytes:
                    found[part.member, part.kind] += part.nbytes
        return found


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
