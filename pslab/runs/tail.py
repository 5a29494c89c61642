"""A run folder that grows while it is read: what its log and its metrics have gained since the last look.

A recovery truncates both files, which then grow again: who reads them begins anew.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from pslab.runs.folder import DECISIONS, METRICS, Run, RunError
from pslab.runs.log import Line, Malformed, read_log
from pslab.runs.summary import Metric, parse_metric

# Bytes before a place in a file by which it is recognised. Lines of a log contain their time.
KNOWN_BY: Final = 4096
# Bytes per read. The bytes before the place are compared in the same read, so no truncation can come between.
PIECE: Final = 1 << 20


class Seen:
    """A place in a file: the first `offset` bytes, recognised by the last of them, and the `lines` among them."""

    def __init__(self) -> None:
        self.offset = self.lines = 0
        self._last = b""

    def more(self, file: BinaryIO, most: int = PIECE) -> bytes | None:
        """Read up to `most` bytes from the place on; empty at the end of the file.

        Return None if the file has other bytes before the place, or ends before it.
        """
        file.seek(self.offset - len(self._last))
        found = file.read(len(self._last) + most)
        return found[len(self._last) :] if found.startswith(self._last) else None

    def take(self, data: bytes) -> None:
        """Move the place behind `data`, which was just read."""
        self.offset += len(data)
        self.lines += data.count(b"\n")
        self._last = (self._last + data)[-KNOWN_BY:]


class RunTail:
    """The log and the metrics of a run that may still grow. Every line is returned once.

    Of a run without a summary, what cannot be read at the end of a file is left for later.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._seen = {DECISIONS: Seen(), METRICS: Seen()}

    @property
    def entries_read(self) -> int:
        """The number of log entries returned so far."""
        return self._seen[DECISIONS].lines

    def cut(self) -> bool:
        """Return whether a file is no longer the one that was read, only longer. All is then returned once more."""
        if not any(self._other(name) for name in self._seen):
            return False
        self._seen = {name: Seen() for name in self._seen}
        return True

    def _other(self, name: str) -> bool:
        path, seen = self.run.path / name, self._seen[name]
        if not path.is_file():
            return seen.offset > 0
        with path.open("rb") as file:
            return seen.more(file, 1) is None

    def entries(self) -> Iterator[Line]:
        """Yield the new entries of the log. Raises RunError if there is none, and at an unreadable line."""
        log, before = self.run.log, self.entries_read
        for entry in read_log(self._new(DECISIONS)):
            if isinstance(entry, Malformed):
                raise RunError(f"{log}:{before + entry.line}: {entry.problem}")
            yield entry

    def evaluations(self) -> Iterator[Metric]:
        """Yield the new evaluations. Raises RunError as `entries` does."""
        for number, line in enumerate(self._new(METRICS), start=self._seen[METRICS].lines + 1):
            try:
                metric = parse_metric(line)
            except ValueError as error:
                raise RunError(f"{self.run.path / METRICS}:{number}: {error}") from error
            if metric.kind == "eval":
                yield metric

    def _new(self, name: str) -> Iterator[str]:
        path, seen, most = self.run.path / name, self._seen[name], PIECE
        if not path.is_file():
            return
        stopped, end = self.run.stopped, self.run.readable(name)
        with path.open("rb") as file:
            # Nothing, or None, where the file was cut meanwhile: the next call of `cut` finds that.
            while seen.offset < end and (data := seen.more(file, min(most, end - seen.offset))):
                *lines, rest = data.split(b"\n")
                if lines:
                    found = [line + b"\n" for line in lines]
                elif len(data) == most:
                    most *= 2
                    continue
                elif stopped:
                    found = [rest]
                else:
                    return
                for line in found:
                    seen.take(line)
                    yield line.decode("utf-8", "replace")
