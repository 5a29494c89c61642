"""Invariants that hold after every step of every schedule, and that every step of a policy ends."""

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pslab.check.checker import log_checks
from pslab.check.log_check import LogCheck
from pslab.runs.fold import COMMITTED, LogState
from pslab.runs.log import Line
from psserver.coordinator import Coordinator, Record
from psserver.decisions import entries
from psserver.policies import names

# CPU seconds after which what a policy does is interrupted; 0: never. See `patient`.
_patience = 0.0


class InvariantViolation(AssertionError):
    """A promise is broken; the sentence says which, and by what."""


def expect(holds: bool, sentence: str) -> None:
    """Raise InvariantViolation with the sentence unless it holds."""
    if not holds:
        raise InvariantViolation(sentence)


class _Interrupted(BaseException):
    """What a policy does takes too long. No policy's `except Exception` catches it."""


@contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Let what runs `within` take so many CPU seconds at most. Only for the main thread."""
    global _patience
    before, handler, _patience = _patience, signal.signal(signal.SIGVTALRM, _interrupt), seconds
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, handler)
        _patience = before


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


@contextmanager
def within(what: str) -> Iterator[None]:
    """Raise InvariantViolation, which names `what`, if the block takes longer than `patient` permits."""
    try:
        # Again and again: Python drops an exception that is raised in a finalizer.
        signal.setitimer(signal.ITIMER_VIRTUAL, _patience, _patience)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _Interrupted:
        raise InvariantViolation(f"{what} does not end: it was interrupted after some time") from None


class Guard:
    """Reads the decision log as it grows: every check of `ps-lab check`, and the coordinator beside a fold of the log.

    `policy`: the name that was asked for. One that is built in must also name who can end a wait; any other need only
    say what a worker waits for. Methods raise InvariantViolation.
    """

    def __init__(self, policy: str) -> None:
        self.log = LogState(remember=True)
        self._checks = log_checks()
        self._seeing = [check for check in self._checks if type(check).see is not LogCheck.see]
        self._explained = policy in names()
        # Cancels since a worker last committed, joined, left or gave something up.
        self.wasted_grants = 0
        # The first explanation of a wait that was not acceptable. For a policy that is not built in it is reported
        # only at the end: a fault that says more may follow.
        self.complaint = ""

    def read(self, record: Record) -> None:
        """Check the next entry of the log."""
        log, entry = self.log, record.entry
        line = Line(record.index + 1, record.index, record.t, entry.kind, entry, {})
        for check in self._seeing:
            for sentence in check.see(line, log):
                raise InvariantViolation(sentence)
        if isinstance(entry, entries.Commit | entries.Leave | entries.Done | entries.Abandon | entries.Join):
            self.wasted_grants = 0
        elif isinstance(entry, entries.Cancel):
            self._cancelled(entry.worker)
        elif isinstance(entry, entries.Stop):
            expect(not log.held, f"left undecided: {list(log.held)}")
        elif isinstance(entry, entries.Policy):
            self._explained = entry.policy["name"] in names()
        log.see(entry, record.t)

    def _cancelled(self, worker: str) -> None:
        """Count a cancelled grant. A policy may cancel one grant of each worker at a time; more than that is no
        progress."""
        self.wasted_grants += 1
        present = sum(not member.gone for member in self.log.members.values())
        expect(
            self.wasted_grants <= 2 * max(1, present),
            f"{worker} and others are granted tickets that are cancelled at once: {self.wasted_grants} cancels, "
            "and nobody has committed, joined, left or given up anything meanwhile",
        )

    def finish(self) -> None:
        """Check the log as a whole, once the job has ended, and what policies that are not built in explained."""
        expect(not self.complaint, self.complaint)
        expect(self.log.stop is not None, "the log has no stop entry")
        for check in self._checks:
            for sentence in check.finish(self.log):
                raise InvariantViolation(sentence)

    # The log and the coordinator's own state

    def compare(self, coordinator: Coordinator) -> None:
        """Check the coordinator's state after a step, once its entries were read."""
        log = self.log
        expect(coordinator.state.version == log.versions, "the coordinator counts other versions")
        expect(coordinator.state.entries == log.entries, "the coordinator counts other entries")
        live = coordinator.state.tickets.live
        if live.keys() != log.held.keys():
            raise InvariantViolation(f"a ticket is lost: {[*live]} are live, {[*log.held]} should be")
        waiting = Counter(ticket.worker for ticket in log.held.values() if ticket.state == COMMITTED)
        for worker, tally in coordinator.state.roster.tallies.items():
            if not (
                tally.committed == log.committed[worker]
                and tally.applied == log.applied[worker] == sum(tally.staleness.values())
                and tally.dropped == log.dropped[worker]
                and tally.committed == tally.applied + tally.dropped + waiting[worker]
            ):
                raise InvariantViolation(
                    f"contributions of {worker} do not add up: {tally}, {waiting[worker]} pending"
                )
        self._nobody_waits_without_reason(coordinator)

    def _nobody_waits_without_reason(self, coordinator: Coordinator) -> None:
        """Every wait has a reason, and at least one worker that can end it does not wait itself."""
        if not coordinator.state.trains:
            return
        present = coordinator.state.roster.present
        for member in present.values():
            if member.requested is None:
                continue
            who = member.worker
            if coordinator.state.tickets.open_of(who):
                expect(member.state == "computing", f"{who} asked ahead and is {member.state}")
                continue
            expect(member.state == "waiting", f"{who} asked and is {member.state}")
            complaint = self._unexplained(coordinator, who)
            if self._explained:
                expect(not complaint, complaint)
            self.complaint = self.complaint or complaint

    def _unexplained(self, coordinator: Coordinator, who: str) -> str:
        """Return what is wrong with the policy's explanation; empty if nothing is."""
        present = coordinator.state.roster.present
        with within(f"explain({who!r})"):
            try:
                waiting = coordinator.policy.explain(who)
                event, releasers = (waiting.event, waiting.releasers) if waiting is not None else ("", ())
                here = [w for w in releasers if w in present]
                free = [
                    w for w in here if present[w].requested is None or coordinator.state.tickets.open_of(w)
                ]
            except (Exception, SystemExit) as error:
                return f"explain({who!r}) failed with {type(error).__name__}: {error}"
        if not event:
            return f"explain({who!r}) is {waiting}, while {who} waits: expected what it waits for"
        if free or (not releasers and not self._explained):
            return ""
        if waiting is not None and waiting.timer and coordinator.remaining(waiting.timer, 0.0) is not None:
            return ""
        named = ", ".join(map(str, releasers)) or "nobody"
        return (
            f"explain({who!r}) says that {named} can end its wait for {event}: "
            "expected somebody who is here and does not wait"
        )
