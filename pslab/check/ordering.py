"""Checks of the log as a sequence: numbering, time, first and last entry, checkpoints."""

from collections.abc import Iterator

from pslab.check.log_check import LogCheck
from pslab.runs.fold import OPEN, LogState
from pslab.runs.log import Line
from psserver.decisions import entries as e


class Indices(LogCheck):
    """Entries are numbered 0, 1, 2, ... without gap or repetition."""

    name = "indices"

    def __init__(self) -> None:
        self._next = 0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if entry.i != self._next:
            yield f"index should be {self._next}, got {entry.i}: entries are missing or out of order"
        # Continue from the index that is there, so that one gap is reported once.
        self._next = entry.i + 1

    def skip(self, index: int | None) -> None:
        """Count a line that could not be read, by its own index if that is known."""
        self._next = (self._next if index is None else index) + 1


class Clock(LogCheck):
    """Time never goes back."""

    name = "time"

    def __init__(self) -> None:
        self._last = 0.0

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if entry.t < self._last:
            yield f"t goes back from {self._last} s to {entry.t} s"
        self._last = entry.t


# What may happen once a job has stopped: its members go, and it is saved, or goes on in new processes.
AFTERWARDS = (e.Lost, e.Back, e.Done, e.Leave, e.Nonfinite, e.Checkpoint, e.Restore)


class Frame(LogCheck):
    """The first entry, and no other, describes the job; it stops at most once, and nothing is decided afterwards."""

    name = "first and last"

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        first = state.entries == 0
        if first and not isinstance(entry.fact, e.Job):
            yield f"the first entry should be of kind job, got {entry.kind}"
        if not first and isinstance(entry.fact, e.Job):
            yield "the job is described a second time"
        if state.stop is not None:
            if isinstance(entry.fact, e.Stop):
                yield "the job stops a second time"
            elif not isinstance(entry.fact, AFTERWARDS):
                yield f"{entry.kind} after the job stopped"

    def finish(self, state: LogState) -> Iterator[str]:
        if state.entries == 0:
            yield "the log is empty"


class TimersCheck(LogCheck):
    """Timers fire while the policy decides, never early, and in the order in which they were due."""

    name = "timers"

    def __init__(self) -> None:
        # Time and due time of the last timer that fired.
        self._last = (-1.0, 0)
        # Tag -> when its last firing was due.
        self._fired: dict[str, int] = {}

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        if not isinstance(entry.fact, e.Timer):
            return
        tag, at = entry.fact.tag, entry.fact.at
        if state.version is None or state.stop is not None:
            yield f"timer {tag} fires while the policy does not decide"
        if round(entry.t * 1e6) < at:
            yield f"timer {tag} fires at {entry.t} s, before it is due at {at / 1e6} s"
        if self._last[0] == entry.t and at < self._last[1]:
            yield f"timer {tag}, due at {at / 1e6} s, fires after one that was due at {self._last[1] / 1e6} s"
        if at <= self._fired.get(tag, -1):
            yield f"timer {tag} fires a second time for {at / 1e6} s or an earlier time"
        self._last, self._fired[tag] = (entry.t, at), at


class Resumptions(LogCheck):
    """A checkpoint is of the current version, and a restore directly follows one. Before the first join after a
    restore, every member of before has left and every open ticket is over."""

    name = "checkpoints"

    def __init__(self) -> None:
        # The job was restored, and nobody has joined since.
        self._restored = False
        # The index of the entry before, if that is a checkpoint.
        self._saved: int | None = None
        # The version of the newest checkpoint.
        self._ordered = -1

    def see(self, entry: Line, state: LogState) -> Iterator[str]:
        saved, self._saved = self._saved, entry.i if isinstance(entry.fact, e.Checkpoint) else None
        match entry.fact:
            case e.Checkpoint(version):
                yield from self._version("a checkpoint", version, state)
                self._ordered = version
            case e.Unsaved(version) if version > self._ordered:
                yield f"version {version} is not saved, and no checkpoint of it was ordered"
            case e.Restore(_, version):
                yield from self._version("a restore", version, state)
                if saved != entry.i - 1:
                    yield "a restore should follow directly on the checkpoint that it continues from"
                self._restored = True
            case e.Join() | e.Grant() | e.Initialise() | e.Stop() if self._restored:
                self._restored = False
                yield from self._leftovers(entry.kind, state)
            case _:
                pass

    def _version(self, what: str, version: int, state: LogState) -> Iterator[str]:
        if state.version is None:
            yield f"{what} of version {version}, before any values were installed"
        elif version != state.version:
            yield f"{what} of version {version}, but {state.version} is current"

    def _leftovers(self, kind: str, state: LogState) -> Iterator[str]:
        present = sorted(member.worker for member in state.members.values() if not member.gone)
        if present:
            yield f"{kind} after a restore, but {present[0]}, a process from before it, has not left"
        for ticket in state.reading():
            if ticket.state == OPEN:
                yield f"{kind} after a restore, but ticket {ticket.number} of a process from before it is open"
