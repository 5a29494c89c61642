"""Waits of workers with their reasons, as the policy explains them during a simulation."""

from dataclasses import dataclass

from psserver.coordinator import Coordinator
from psserver.coordinator.status import waited_for

# [worker, begin, end, event, releasers]; the event completes the phrase "waits for ...".
Wait = list[object]


@dataclass(slots=True)
class _Open:
    begin: float
    event: str
    releasers: tuple[str, ...]


class WaitLog:
    """Collects `waits` from a coordinator that is passed to `look` after each step. A new reason is a new wait."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self._open: dict[str, _Open] = {}

    def look(self, coordinator: Coordinator, now: float) -> None:
        waiting = {}
        if coordinator.state.stopped is None:
            members = coordinator.state.roster.present.values()
            waiting = {member.worker: member for member in members if member.state == "waiting"}
        for worker in [worker for worker in self._open if worker not in waiting]:
            self._close(worker, now)
        for worker, member in waiting.items():
            waiting_for = waited_for(coordinator, member)
            former = self._open.get(worker)
            reason = waiting_for.event, waiting_for.releasers
            if former is not None and (former.event, former.releasers) == reason:
                continue
            if former is not None:
                self._close(worker, now)
            self._open[worker] = _Open(now, *reason)

    def end(self, now: float) -> None:
        for worker in list(self._open):
            self._close(worker, now)

    def _close(self, worker: str, now: float) -> None:
        found = self._open.pop(worker)
        if now > found.begin:
            self.waits.append([worker, found.begin, now, found.event, list(found.releasers)])
