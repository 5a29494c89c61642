"""The log of a run that continues: kept up to a checkpoint; what follows is put aside.

A killed server's log may end within a line, or after its newest checkpoint. The entries after that are void, because
nothing continues from them; they go to a file of their own. A loss of power may leave anything after the newest
checkpoint. An unreadable line before it was damaged later, because no checkpoint is complete before the log is on the
disk up to it. Such a line loses its own evidence, but no checkpoint after it.
"""

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psserver.checkpoint.disk import UnwritableError
from psserver.checkpoint.store import name_of
from psserver.decisions.counting import Pending
from pswire.generations import follows
from pswire.own_files import same_file

DECISIONS, METRICS = "decisions.jsonl", "metrics.jsonl"
SUMMARY, WEIGHTS = "summary.json", "weights.safetensors"


class RewindError(OSError):
    """The log cannot be read. The text names the file."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint's entry in the log. `end`: the position in bytes of the end of its line.

    `pending`: committed tickets without a fate, and what was applied so far, as metrics.jsonl counts.
    """

    entry: int
    job: str
    version: int
    end: int
    pending: Pending
    # Seconds from the job's beginning to its first grant.
    first_grant: float | None
    # The line that named the job's generation may be among the unreadable ones.
    doubtful: bool = False


# What reading a line that is no entry may raise.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

# Rewinding to it voids the whole log.
BEGINNING = Mark(-1, "", -1, 0, Pending(), None)


@dataclass
class LogIndex:
    """The places of a log's checkpoints. Raises RewindError for a file that cannot be read at all.

    `entries`: the number of entries up to the last readable line. `job`: the name in the last readable entry that has
    one. `damage`: why the first unreadable line cannot be read, unless the log just ends there; `hole`: the number of
    its entry. `present`: the members at the log's end. `done`: by worker, the entry after which it had no more data.
    """

    folder: Path
    marks: dict[int, Mark] = field(default_factory=dict)
    entries: int = 0
    job: str = ""
    damage: str = ""
    hole: int | None = None
    present: set[str] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path, scan = self.folder / DECISIONS, _Scan()
        # `lost`: unreadable lines since the last readable one. `shift`: entry numbers minus line numbers, which changes
        # where the end of a line was damaged.
        lost, shift, end = 0, 0, 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file):
                    if not line.endswith(b"\n"):
                        break
                    end += len(line)
                    try:
                        entry = json.loads(line)
                        index = int(entry.get("i", number + shift))
                        if abs(index - number - shift) > lost:
                            raise ValueError(index)
                        mark = scan.see(entry, index, end)
                    except UNREADABLE as error:
                        if self.hole is None:
                            self.hole, why = self.entries, type(error).__name__
                            self.damage = f"{path}:{number + 1}: is no entry of a decision log: {why}"
                        lost, scan.doubtful = lost + 1, True
                        continue
                    if mark is not None:
                        self.marks[index] = mark
                    self.entries, shift, lost = index + 1, index - number, 0
        except OSError as error:
            raise RewindError(f"{path} cannot be read: {error.strerror or error}") from error
        self.job, self.present, self.done = scan.job, scan.present, scan.done

    def expected(self, mark: Mark) -> frozenset[str]:
        """Return the workers that a job which continues from there waits for.

        They are the members at the log's end, and those that finished after the mark and have left. A worker that left
        before its data ended is not among them.
        """
        return frozenset(self.present | {worker for worker, entry in self.done.items() if entry > mark.entry})

    def names(self, mark: Mark) -> set[str]:
        """Return the names of the checkpoints up to the mark: once rewound, a job can continue from no others."""
        own = {name_of(m.entry, m.job) for m in self.marks.values() if m.entry <= mark.entry}
        return own | {name_of(mark.entry, mark.job)}

    def lacks(self, entry: int, job: str, version: int) -> str | None:
        """Say why such a checkpoint does not belong to this log; None if it does."""
        mark = self.marks.get(entry)
        if mark is not None and mark.version == version:
            if mark.job == job or (mark.doubtful and (not mark.job or follows(job, mark.job))):
                return None
        if self.damage and entry >= self.entries:
            return f"the log cannot be read up to entry {entry}: {self.damage}"
        return (
            f"is none of this log, which has no checkpoint of version {version} of job {job} at entry {entry}: it was "
            "rolled back, or is of another run"
        )

    def rewind(self, mark: Mark) -> int:
        """Cut log and metrics after that checkpoint. Return the number of entries that were put aside.

        They are appended to the file `decisions.void-ENTRY.jsonl`. Raises UnwritableError; the log is then whole, cut
        or not.
        """
        log, metrics = self.folder / DECISIONS, self.folder / METRICS
        try:
            void = self.entries - mark.entry - 1
            if void or self.damage:
                _append(self.folder / f"decisions.void-{mark.entry + 1}.jsonl", log, mark.end)
            _cut(log, mark.end)
            if metrics.is_file():
                _cut(metrics, _end_of(metrics, mark.version))
            self._put_aside(mark.version)
        except OSError as error:
            raise UnwritableError(
                f"{error.filename or self.folder} cannot be changed: {error.strerror}"
            ) from error
        return void

    def _put_aside(self, version: int) -> None:
        """Rename or remove summary and weights, whose version will not be the last.

        Those of the version from which the job continues are kept under its number. The summary, which names the
        version, is moved last, so that a process killed halfway repeats all of it.
        """
        summary, weights = self.folder / SUMMARY, self.folder / WEIGHTS
        try:
            found = json.loads(summary.read_bytes())["versions"]
        except (OSError, *UNREADABLE):
            found = None
        for path in (weights, summary):
            if path.is_file() and found == version:
                path.rename(path.with_stem(f"{path.stem}-{version}"))
            else:
                path.unlink(missing_ok=True)


class _Scan:
    """The knowledge of the run's log writer after each entry.

    `present`: the members, including those that a rollback has disconnected and that will return. `doubtful`: a line
    since the last one that named the job was unreadable.
    """

    def __init__(self) -> None:
        self.job = ""
        self.present: set[str] = set()
        self.done: dict[str, int] = {}
        self.doubtful = False
        self._pending = Pending()
        self._first_grant: float | None = None

    def see(self, entry: dict[str, Any], index: int, end: int) -> Mark | None:
        match entry["kind"]:
            case "job" | "restore":
                self.job, self.doubtful = str(entry["job"]), False
            case "join":
                self.present.add(str(entry["worker"]))
                self.done.pop(str(entry["worker"]), None)
            case "done":
                self.done[str(entry["worker"])] = index
            case "resume":
                self.done.pop(str(entry["worker"]), None)
            case "leave":
                if not entry.get("kept"):
                    self.present.discard(str(entry["worker"]))
            case "grant":
                if self._first_grant is None:
                    self._first_grant = float(entry["t"])
            case "commit":
                loss = entry["loss"]
                self._pending.commit(
                    int(entry["ticket"]), int(entry["samples"]), math.nan if loss is None else loss
                )
            case "drop":
                self._pending.drop(int(entry["ticket"]))
            case "apply":
                self._pending.apply([int(part["ticket"]) for part in entry["parts"]])
            case "checkpoint":
                known = (self._pending.copy(), self._first_grant)
                return Mark(index, self.job, int(entry["version"]), end, *known, self.doubtful)
        return None


def _append(aside: Path, source: Path, start: int) -> None:
    with source.open("rb") as file, same_file(aside, os.O_APPEND) as into:
        file.seek(start)
        while piece := file.read(1 << 20):
            into.write(piece)
        into.flush()
        os.fsync(into.fileno())


def _cut(path: Path, end: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
        file.truncate(end)
        os.fsync(file.fileno())


def _end_of(metrics: Path, version: int) -> int:
    """Return the end of the last line about that version or an earlier one. Unreadable lines before it stay."""
    end = place = 0
    with metrics.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            place += len(line)
            try:
                later = json.loads(line)["version"] > version
            except UNREADABLE:
                continue
            if later:
                break
            end = place
    return end
