"""Memory that peers can cause a server to take, in one account: how much, for whom, and how much there may be."""

import threading
from collections import Counter
from pathlib import Path
from typing import Final

MIB: Final = 2**20
# Of what the machine, or the container, has.
SHARE: Final = 0.8
_UNITS: Final = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class MemoryLedger:
    """Bytes by member and kind. Any thread may call it; `_lock` owns the account.

    What belongs to the model rather than to a member has the member "".
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._held: Counter[tuple[str, str]] = Counter()

    def take(self, member: str, kind: str, nbytes: int) -> str | None:
        """Account for `nbytes` more; or why there is no room for them, with nothing changed."""
        with self._lock:
            total = self._held.total()
            if total + nbytes > self.limit:
                return (
                    f"expected at most {self.limit / MIB:.1f} MiB in all (--memory-limit), of which "
                    f"{total / MIB:.1f} are taken, got {nbytes / MIB:.1f} more for {kind}"
                )
            self._held[member, kind] += nbytes
        return None

    def put(self, member: str, kind: str, nbytes: int) -> None:
        """So many bytes of this kind are held from now on, whatever there were before."""
        with self._lock:
            self._held[member, kind] = nbytes

    def give(self, member: str, kind: str, nbytes: int) -> None:
        """So many bytes are free again."""
        with self._lock:
            self._held[member, kind] -= nbytes
            if self._held[member, kind] <= 0:
                del self._held[member, kind]

    @property
    def total(self) -> int:
        with self._lock:
            return self._held.total()

    def of(self, member: str) -> dict[str, int]:
        """What a member has, by kind."""
        with self._lock:
            return {kind: nbytes for (who, kind), nbytes in self._held.items() if who == member}


def parse_size(text: str) -> int:
    """Bytes of "1GiB", "512 MiB" or a plain number. Raises ValueError."""
    number = text.strip().rstrip("abgiktmABGIKTM")
    unit = text.strip()[len(number) :].upper()
    try:
        size = int(float(number) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError) as error:
        raise ValueError(f"expected a size such as 1GiB or 512MiB, got {text!r}") from error
    if size < MIB:
        raise ValueError(f"expected at least 1MiB, got {text!r}")
    return size


def usual_limit() -> int:
    """A share of what the machine has, or of what the container allows."""
    allowed = [_number(Path(path)) for path in _CGROUP_LIMITS]
    pages = [
        line.split() for line in _text(Path("/proc/meminfo")).splitlines() if line.startswith("MemTotal")
    ]
    allowed += [1024 * int(pages[0][1])] if pages else []
    return int(SHARE * min((each for each in allowed if each), default=2**40))


_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _number(path: Path) -> int:
    text = _text(path).strip()
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
