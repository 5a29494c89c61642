"""What happens next, on a virtual clock."""

from collections.abc import Callable
from heapq import heappop, heappush


class EventQueue:
    """Actions in order of (time, sequence): what was put down first comes first at equal times."""

    def __init__(self) -> None:
        self.now = 0.0
        # Actions done so far.
        self.done = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        """Have ``action(*arguments)`` happen at `time`, or now when that has passed."""
        self._sequence += 1
        heappush(self._heap, (max(time, self.now), self._sequence, action, arguments))

    def after(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now + seconds, self._sequence, action, arguments))

    def step(self) -> bool:
        """Do the next action. False when there is none."""
        if not self._heap:
            return False
        self.now, _, action, arguments = heappop(self._heap)
        self.done += 1
        action(*arguments)
        return True
