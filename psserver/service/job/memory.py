"""Memory of what is too small and too often changed to be counted as it changes: the log's tail, notices, names."""

from psserver.service.guard.ledger import MODEL, Held
from psserver.service.job.decider import Decider

# Of memory, about: a notice with a sentence.
NOTICE_BYTES = 512


class JobMemory:
    """Of one job, in its server's account. The loop's thread owns it; the account may be asked from any."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        # What the log's tail and unread notices took when they were last looked at.
        self._held: list[Held] = []
        ledger = decider.host.memory.ledger
        ledger.watch(lambda: sum(held.nbytes for held in self._held[-1:]), lambda: self._held[:-1])
        ledger.watch(lambda: self._names, lambda: [Held(MODEL, "names", self._names)])

    def measure(self) -> None:
        """From time to time."""
        routes = self._decider.routes
        unread = [Held(w, "notices", NOTICE_BYTES * count) for w, count in routes.outboxes.unread()]
        parts = [Held(MODEL, "log tail", routes.tail.nbytes), *unread]
        self._held = [*parts, Held(MODEL, "all of these", sum(part.nbytes for part in parts))]

    @property
    def _names(self) -> int:
        return self._decider.coordinator.roster.nbytes
