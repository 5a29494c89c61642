"""When the log's lines leave this process: what a crash may take of them."""

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from psserver.service.job.json_lines import LogError
from psserver.service.job.run_log import RunLog
from psserver.service.net.waits import settle

# Seconds: as often as anybody looks whether it is time.
SOONEST: Final = 0.2


@dataclass(frozen=True, slots=True)
class LogFlush:
    """`seconds`: between two flushes, where workers are told at once; 0: before any worker is told, once for all that
    was decided in one turn of the loop. `disk`: and it must be on the disk then."""

    seconds: float = SOONEST
    disk: bool = False

    @property
    def first(self) -> bool:
        """Nobody is told before it is written."""
        return not self.seconds


def parse_flush(text: str) -> LogFlush:
    """Of "wake-up", "disk" or a number of seconds. Raises ValueError."""
    if text in ("wake-up", "disk"):
        return LogFlush(0.0, disk=text == "disk")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SOONEST <= seconds < float("inf"):
        raise ValueError(
            f"--log-flush: expected wake-up, disk, or seconds from {SOONEST:g} on, such as 1, got {text!r}"
        )
    return LogFlush(seconds)


class Flushing:
    """Flushes a run log as `how` says; `failed(error)` is called when it cannot. The loop's thread owns it."""

    def __init__(
        self,
        run_log: RunLog,
        how: LogFlush,
        loop: Callable[[], AbstractEventLoop],
        failed: Callable[[LogError], None],
    ) -> None:
        self._log, self._how, self._loop, self._failed = run_log, how, loop, failed
        # A flush is due at the end of this turn; those that wait for it.
        self._due = False
        self._waiting: list[Future[None]] = []
        self._whole = True
        self._next = 0.0

    def taken(self) -> None:
        """The log has taken lines. Before anybody is told."""
        if self._how.first and not self._due:
            self._due = True
            self._loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        try:
            if self._how.disk:
                self._log.sync()
            self._log.flush()
        except LogError as error:
            self._whole = False
            self._failed(error)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            settle(future)

    async def written(self) -> bool:
        """Once a worker may be told of all that the log has taken. False: it could not be written, and nobody may."""
        if self._due:
            future = self._loop().create_future()
            self._waiting.append(future)
            await future
        return self._whole

    def tick(self, now: float) -> None:
        """`now`: seconds, monotonic. Raises LogError."""
        if now >= self._next:
            self._next = now + self._how.seconds
            self._log.flush()
