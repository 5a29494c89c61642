"""Waits of workers with their reasons, as the run's policy explains them.

The log does not contain this. So the run's own policy is asked again on the schedule of the log (see
`pslab.replay.whatif`), or during a simulation.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pslab.replay import schedule
from pslab.replay.schedule import fold_of, job_of
from pslab.replay.whatif import Counterfactual, proposal_of, terms_of
from psserver.coordinator import Coordinator, Record
from psserver.coordinator.status import waited_for
from psserver.policies import Policy, check_trusted
from psserver.policies import build as build_policy
from pswire.decisions import entries

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


def waits_of(steps: Sequence[Record], *, trusted: bool) -> list[Wait]:
    """Return the waits of a run. `trusted`: policies given as code may run.

    Raises PolicyError when the policy is not available or not trusted.
    """
    job = job_of(steps)
    policy = _policy_of(job.policy, job, trusted)
    again, found = Counterfactual(terms_of(job), proposal_of(steps), policy), WaitLog()
    changes = deque((step.t, step.entry) for step in steps if isinstance(step.entry, entries.Policy))
    for move in _with_last_requests(schedule.schedule(steps)):
        while changes and changes[0][0] < move.t:
            t, change = changes.popleft()
            again.change(_policy_of(change.policy, job, trusted), change, t)
            found.look(again.coordinator, t)
        again.receive(move)
        found.look(again.coordinator, move.t)
    found.end(fold_of(steps).seconds)
    return found.waits


def _policy_of(config: Mapping[str, Any], job: entries.Job, trusted: bool) -> Policy:
    """Build a policy that the log names. Raises PolicyError, also for code that is not trusted."""
    check_trusted(str(config["name"]), trusted)
    knobs = {key: value for key, value in config.items() if key != "name"}
    return build_policy(str(config["name"]), knobs, job.workers, job.servers)


def _with_last_requests(moves: list[schedule.Move]) -> list[schedule.Move]:
    """Add requests that were never granted and are missing in the log: a worker asks again after each commit."""
    last = {move.worker: place for place, move in enumerate(moves)}
    found = list(moves)
    for worker, place in sorted(last.items(), key=lambda item: -item[1]):
        if isinstance(moves[place], schedule.Finish | schedule.GiveUp):
            found.insert(place + 1, schedule.Ask(moves[place].t, worker))
    return found
