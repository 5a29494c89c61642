"""The log's files at a takeover: the new primary goes on in files of its own, with what its predecessor wrote.

A predecessor that wakes up writes to a file that has another name by then, which nobody reads.
"""

import os
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from psserver.checkpoint import UnwritableError, files
from psserver.checkpoint.disk import RealDisk
from psserver.decisions.counting import Pending
from psserver.service.job.log_file import Check, Fence, JsonLines, LogError
from psserver.service.job.run_log import DECISIONS, METRICS, RunLog
from psserver.service.replicas.disk import FOLDER

#: The file in `FOLDER` that each primary replaces when it begins to lead.
LEADER: Final = "leader"
#: Newest lines that a follower remembers: what its primary has not written yet.
KEPT: Final = 65536


class KeptLines:
    """The lines that a follower would have written."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken
        self._lines: deque[Callable[[], str]] = deque(maxlen=KEPT)

    def take(self, line: Callable[[], str]) -> None:
        self.taken += 1
        self._lines.append(line)

    def append(self, value: dict[str, Any]) -> None:
        """Leave out: only a primary measures."""

    def since(self, number: int) -> list[str]:
        """Return the lines from number `number` on. Raises LogError if they are not remembered."""
        first = self.taken - len(self._lines)
        if not first <= number <= self.taken:
            raise LogError(
                f"the decision log has {number} lines, and this copy remembers {first} to {self.taken}: expected a "
                "number of these, or the log would have a gap"
            )
        return [line() for line in list(self._lines)[number - first :]]

    def flush(self) -> None:
        """Do nothing."""

    sync = close = flush


class FollowersLog(RunLog):
    """The run log of a copy: it remembers its newest lines until `succeed`.

    `entries`, `version`, `pending`: what the log had before the first line that this copy sees.
    """

    def __init__(
        self, rescue: Path | None, entries: int = 0, version: int = 0, pending: Pending | None = None
    ) -> None:
        super().__init__(None, rescue=rescue)
        self._pending = pending or Pending()
        # Each version has a line of its own among the metrics.
        self._kept = KeptLines(entries), KeptLines(version)
        # Those remember in the files' place.
        self._decisions, self._metrics = self._kept  # type: ignore[assignment]

    def succeed(self, folder: Path, name: str) -> None:
        """Go on with the log of the former primary, in files of this one. `name`: of the former files. Raises
        LogError."""
        kept_decisions, kept_metrics = self._kept
        self._folder, self._check = folder, fence(folder)
        self._decisions = _taken_over(folder / DECISIONS, name, kept_decisions, self._check, lambda _: True)
        self._metrics = _taken_over(
            folder / METRICS, name, kept_metrics, self._check, lambda line: b'"kind":"train"' in line
        )


def fence(folder: Path) -> Fence:
    """Have every former primary notice, before it writes anything, that this server leads. Raises LogError."""
    path = folder / FOLDER / LEADER
    try:
        RealDisk().make_folder(path.parent)
        files.write(RealDisk(), path, [memoryview(str(os.getpid()).encode())])
    except (OSError, UnwritableError) as error:
        raise LogError(f"{path}: {error}") from error
    return Fence(path)


def _taken_over(
    path: Path, name: str, kept: KeptLines, check: Check, counts: Callable[[bytes], bool]
) -> JsonLines:
    """Go on in a new file of that name, with the whole lines of the former one, which gets another name, and with those
    that it lacks.

    `counts`: whether a follower keeps such lines too. At each moment the name has a whole log: if this server is killed
    meanwhile, a checkpoint needs it.
    """
    former = path.with_name(f"{path.stem}.before-{name}{path.suffix}")
    # Another generation may have had an epoch of that name, if its promises were removed.
    again = count(2)
    while former.exists():
        former = path.with_name(f"{path.stem}.before-{name}-{next(again)}{path.suffix}")
    aside = files.aside_of(path)
    try:
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        missing = kept.since(sum(map(counts, whole.splitlines())))
        with open(aside, "wb") as file:
            file.write(whole)
            file.writelines(f"{line}\n".encode() for line in missing)
        try:
            os.link(path, former)
        except OSError:
            # There are file systems without a second name for a file.
            former.write_bytes(data)
        os.replace(aside, path)
    except OSError as error:
        if isinstance(error, LogError):
            raise
        raise LogError(f"{path} cannot be taken over: {error.strerror or error}") from error
    return JsonLines(path, going_on=True, check=check)
