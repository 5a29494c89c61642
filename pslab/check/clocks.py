"""Workers' clocks, recounted from the log alone."""

from collections.abc import Iterable

from psserver.decisions import entries as e


class Clocks:
    """The clock of each worker that takes part: the number of its commits, those of its former processes included.

    A worker that has left or was done comes back at its own clock, but not below the floor: the clock that all present
    workers had reached at some commit. A new one starts there. Clocks start anew from 0 once all workers are done.

    `workers`: those that take part already, at clock 0.
    """

    def __init__(self, workers: Iterable[str] = ()) -> None:
        self.present = dict.fromkeys(workers, 0)
        self._left: dict[str, int] = {}
        self._floor = 0

    def see(self, entry: e.Entry) -> None:
        """Take the next entry of the log."""
        match entry:
            case e.Grant(worker) if worker not in self.present:
                self.present[worker] = max(self._floor, self._left.pop(worker, 0))
            case e.Commit(worker) if worker in self.present:
                self.present[worker] += 1
                self._floor = max(self._floor, self.slowest)
            case e.Leave(worker) | e.Done(worker) if worker in self.present:
                self._left[worker] = self.present.pop(worker)
                if isinstance(entry, e.Done) and not self.present:
                    self._left, self._floor = {}, 0

    @property
    def slowest(self) -> int:
        """The least clock; 0 if nobody takes part."""
        return min(self.present.values(), default=0)

    def lead(self, worker: str) -> int:
        """Return how far a worker that takes part is ahead of the slowest."""
        return self.present[worker] - self.slowest
