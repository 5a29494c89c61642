"""Trigger: do the committed contributions make an update? And which open tickets does the update cancel?"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from psserver.policies.parts.view import View

# GainPerTime waits for all again after this multiple of the time that it takes.
PROBE = 20


class Trigger(Protocol):
    """Decides when the committed contributions make an update. `timed`: it reads `view.times`."""

    timed: ClassVar[bool] = False

    def fires(self, view: View) -> bool:
        """Whether the buffer, which is not empty, becomes the next version."""
        ...


@dataclass(frozen=True, slots=True)
class Everyone(Trigger):
    """Every active worker but `backup` of them has contributed.

    The number needed is ``max(workers, most ever active) - backup``, or all that are left if they are fewer: a lost
    worker uses up a backup first. The contribution of a worker that has left counts as its own only.
    """

    workers: int
    backup: int = 0

    def fires(self, view: View) -> bool:
        present = view.present_count()
        needed = min(max(self.workers, view.peak, present) - self.backup, present)
        return len(view.contributors()) >= max(1, needed)


@dataclass(frozen=True, slots=True)
class Distinct(Trigger):
    """`count` different workers have contributed, or all that are left if they are fewer.

    Needs a gate that holds contributors, such as WaitForUpdate, so that no worker contributes twice.
    """

    count: int

    def fires(self, view: View) -> bool:
        return len(view.contributors()) >= min(self.count, view.present_count())


@dataclass(frozen=True, slots=True)
class Count(Trigger):
    """Any `count` contributions, or the rest once no more can come."""

    count: int

    def fires(self, view: View) -> bool:
        return len(view.buffer) >= self.count or view.draining()


@dataclass(frozen=True, slots=True)
class CancelStale:
    """Cancels tickets that are `age` versions behind: their workers start again from the current version.

    An age of 1 cancels all that started before the update: K-sync and backup workers (Dutta
    et al. 2018). Ringmaster "with stops" has a greater age.
    """

    age: int = 1

    def void(self, view: View) -> list[int]:
        """Return the numbers of the tickets to cancel, oldest first."""
        oldest = view.oldest_base()
        if oldest is None or view.version - oldest < self.age:
            return []
        # Open tickets are in the order of their versions: all after the first young one are young.
        tickets = []
        for opened in view.open.values():
            if view.version - opened.base < self.age:
                break
            tickets.append(opened.ticket)
        return tickets


@dataclass(frozen=True, slots=True)
class GainPerTime(Trigger):
    """Wait for as many different workers as gain most per time (dynamic backup workers: Xu et al. 2020, DBW).

    An update of k gradients gains ``k / (k + noise)`` of what one of all data would (`noise`: the gradient noise scale
    in contributions; McCandlish et al. 2018, An Empirical Model of Large-Batch Training, eq. 2.7). Its time is the
    smoothed time from the start of a round to the k-th commit. The trigger takes the k with the largest quotient, the
    larger one of equals. DBW estimates the gain from the norm of the mean gradient, which a policy does not see.

    Times of cancelled tickets are not known. So an update waits for all while a time is not known, and whenever the
    updates since it last did so have taken `PROBE` times as long as waiting for all: that costs a twentieth of the time
    at most, and finds a worker that has become fast again. Needs a gate that holds contributors.
    """

    noise: float
    timed: ClassVar[bool] = True

    def fires(self, view: View) -> bool:
        present = view.present_count()
        times = view.known_times
        if times.chosen is None:
            times.chosen = self.choose(view)
        return len(view.contributors()) >= min(times.chosen, present)

    def choose(self, view: View) -> int:
        """Return k for the coming update."""
        workers = view.present_count()
        best, chosen = 0.0, workers
        times = view.known_times.ranks[:workers]
        known = view.known_times
        if len(times) < workers or (known.began or 0) - known.complete >= PROBE * times[-1]:
            return workers
        for k, time in enumerate(times, start=1):
            gain = k / (k + self.noise) / max(time, 1.0)
            if gain >= best:
                best, chosen = gain, k
        return chosen
