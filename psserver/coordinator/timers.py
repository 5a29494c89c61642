"""Timers of a policy: which are set, when they fire, and how a pause of the job postpones them."""

from dataclasses import dataclass, field
from typing import Final

from psserver.policies import ClearTimer, PolicyError, SetTimer

# Limit of timers that are set at once.
TAGS_LIMIT: Final = 64
# Limit of characters of a tag, which every firing writes to the log.
TAG_LENGTH_LIMIT: Final = 64
# A timer is set at least this far ahead, in microseconds.
LEAST_AHEAD: Final = 1000
# Limit of consecutive firings that release no worker while all workers wait.
IDLE_LIMIT: Final = 100


@dataclass(slots=True)
class Timers:
    """The timers that a policy has set, by tag. All times are whole microseconds of the job.

    Due timers fire in the order of their times, and of their setting if these are equal. While the job is paused, none
    fires; afterwards each is due later by the part of the pause that it has seen.
    """

    # Tag -> when it is due, in the order of setting. Changed only by the methods below.
    pending: dict[str, int] = field(default_factory=dict)
    paused_since: int | None = None
    # Consecutive firings that released no worker while all waited.
    idle: int = 0
    # When the first of them is due; of no meaning if none is set.
    _soonest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._soonest = min(self.pending.values(), default=0)

    def set(self, timer: SetTimer, now: int) -> None:
        """Set a timer, in place of one with the same tag. Raises PolicyError for one that is not acceptable."""
        tag, at = timer.tag, timer.at
        _check_tag(tag)
        if type(at) is not int:
            raise PolicyError(f"timer {tag!r}: expected its time in whole microseconds, got {at!r}")
        if at < now + LEAST_AHEAD:
            raise PolicyError(
                f"timer {tag!r}: expected a time at least {LEAST_AHEAD} microseconds after the event at {now}, got {at}"
            )
        if tag not in self.pending and len(self.pending) >= TAGS_LIMIT:
            raise PolicyError(f"timer {tag!r}: expected at most {TAGS_LIMIT} timers at once; clear one first")
        self.pending.pop(tag, None)
        # The end of a pause adds its whole length, also what had passed of it by now.
        self.pending[tag] = at if self.paused_since is None else at - (now - self.paused_since)
        self._soonest = min(self.pending.values())

    def clear(self, timer: ClearTimer) -> None:
        """Remove a timer, if it is set. Raises PolicyError for a tag that is not acceptable."""
        _check_tag(timer.tag)
        self.pending.pop(timer.tag, None)
        self._soonest = min(self.pending.values(), default=0)

    def clear_all(self) -> None:
        """Remove all timers."""
        self.pending.clear()
        self._soonest = 0

    def take_due(self, now: int) -> tuple[str, int] | None:
        """Remove and return the next timer that is due, with its time; None if none is or the job is paused."""
        if not self.pending or now < self._soonest or self.paused_since is not None:
            return None
        # The first of equals was set first.
        tag = next(tag for tag, at in self.pending.items() if at == self._soonest)
        at = self.pending.pop(tag)
        self._soonest = min(self.pending.values(), default=0)
        return tag, at

    @property
    def due(self) -> int | None:
        """When the next timer fires; None if none is set or the job is paused."""
        return self._soonest if self.pending and self.paused_since is None else None

    def pause(self, paused: bool, now: int) -> None:
        """Pause or continue the job. Postpones all timers by the length of a pause that ends."""
        if paused and self.paused_since is None:
            self.paused_since = now
        elif not paused and self.paused_since is not None:
            length, self.paused_since = now - self.paused_since, None
            self.pending = {tag: at + length for tag, at in self.pending.items()}
            self._soonest += length


def _check_tag(tag: object) -> None:
    if not (isinstance(tag, str) and 0 < len(tag) <= TAG_LENGTH_LIMIT):
        raise PolicyError(f"timer {tag!r}: expected a tag of 1 to {TAG_LENGTH_LIMIT} characters")
