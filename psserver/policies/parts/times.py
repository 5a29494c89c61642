"""The times that deadlines need: of the present round, and of each worker."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Pace:
    """A worker's smoothed duration from grant to commit and its mean deviation, in microseconds (RFC 6298).

    With a new duration x: ``deviation += (abs(mean - x) - deviation) / 4``, then ``mean += (x - mean) / 8``.
    """

    mean: float
    deviation: float

    def learn(self, duration: int) -> None:
        """Take one more duration."""
        self.deviation += (abs(self.mean - duration) - self.deviation) / 4
        self.mean += (duration - self.mean) / 8

    @property
    def limit(self) -> int:
        """The duration after which the worker is late by its own measure."""
        return round(self.mean + 4 * self.deviation)


@dataclass(slots=True)
class Times:
    """Whole microseconds of the job.

    `now`: of the present event. `began`: when the present version was made; None before the first grant. `first`: when
    the first contribution of the coming update was committed; None while there is none. `paces`: by worker. `chosen`:
    number of contributions that the trigger chose for the coming update; None: not yet. `count`: commits so
    far in the round. `ranks`: smoothed times from the start of a round to its first commit, its second, and so on.
    `complete`: when the last update without a cancelled ticket was made.
    """

    now: int = 0
    began: int | None = None
    first: int | None = None
    paces: dict[str, Pace] = field(default_factory=dict)
    chosen: int | None = None
    count: int = 0
    ranks: list[float] = field(default_factory=list)
    complete: int = 0

    def committed(self, worker: str, granted: int) -> None:
        """Learn how long a ticket of a worker took that was granted at that time."""
        duration = self.now - granted
        pace = self.paces.get(worker)
        if pace is None:
            self.paces[worker] = Pace(duration, duration / 2)
        else:
            pace.learn(duration)
        since = float(self.now - (self.began or 0))
        if self.count == len(self.ranks):
            self.ranks.append(since)
        elif self.count < len(self.ranks):
            self.ranks[self.count] += (since - self.ranks[self.count]) / 8
        self.count += 1

    def granted(self) -> int:
        """Return the time of a grant. The first one of all begins the first round."""
        if self.began is None:
            self.began = self.complete = self.now
        return self.now

    def updated(self, cancelled: int) -> None:
        """Begin the next round. `cancelled`: tickets that the update cancels."""
        if not cancelled:
            self.complete = self.now
        self.began, self.first = self.now, None
        self.chosen, self.count = None, 0

    def discarded(self) -> None:
        """Forget the coming update, whose contributions are dropped."""
        self.first = self.chosen = None

    def begin_anew(self) -> None:
        """Forget the present round: the next grant begins another one."""
        self.discarded()
        self.began, self.count = None, 0

    def forget(self, worker: str) -> None:
        """Forget the pace of a worker that has left: another process may be faster."""
        self.paces.pop(worker, None)
