"""Runs every check over a log, once, line by line."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pslab.check.checks.members import Members
from pslab.check.checks.ordering import Clock, Frame, Indices
from pslab.check.checks.rates import Rates
from pslab.check.checks.refusals import Refusals
from pslab.check.checks.resumptions import Resumptions
from pslab.check.checks.run_files import MetricsAgree, SummaryAgrees, WeightsAgree
from pslab.check.checks.sums import Folds, Turns, Weights
from pslab.check.checks.tickets import Accounting, OneAtATime, TicketLife
from pslab.check.checks.times import WorkersTimes
from pslab.check.checks.versions import Staleness, Versions
from pslab.check.checks.work_units import WorkUnits
from pslab.check.conservation import Conservation, ConservationCounter
from pslab.check.ledger import Ledger
from pslab.check.log_check import LogCheck, Violation
from pslab.check.policies.guarantee import PolicyGuarantee
from pslab.runs.folder import WEIGHTS, Run, RunError, Summary
from pslab.runs.log import Line, Malformed

READABLE = "entries"
LAW = "staleness law"


@dataclass(frozen=True)
class CheckResult:
    """What was found. `counts`: violations by check, 0 for a check that passed."""

    entries: int
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    conservation: Conservation
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def log_checks() -> list[LogCheck]:
    """All checks of a log by itself, in the order in which reports print them."""
    return [
        Indices(),
        Clock(),
        Frame(),
        Members(),
        TicketLife(),
        OneAtATime(),
        Accounting(),
        WorkUnits(),
        WorkersTimes(),
        Versions(),
        Rates(),
        Staleness(),
        Weights(),
        Folds(),
        Turns(),
        Refusals(),
        Resumptions(),
        PolicyGuarantee(),
    ]


def check_run(run: Run) -> CheckResult:
    """Check a run folder: its log, and that summary, metrics and weights agree.

    Of a run without a summary, which was cut off or goes on: its log up to the last whole line, and a note.
    """
    summary: Summary | RunError | None = None
    if run.stopped:
        try:
            summary = run.summary
        except RunError as error:
            summary = error
    more: list[LogCheck] = [SummaryAgrees(summary), MetricsAgree(run.metrics())]
    if isinstance(summary, Summary):
        more.append(WeightsAgree(run.path / WEIGHTS, summary.weights_sha256))
    verdict = check_log(run.lines(), more)
    return replace(verdict, notes=(*verdict.notes, run.unfinished)) if run.unfinished else verdict


def check_log(log: Iterable[Line | Malformed], more: Sequence[LogCheck] = ()) -> CheckResult:
    """Check a decision log. Never stops at the first violation; keeps one ticket record per ticket."""
    checks, ledger, counter = [*log_checks(), *more], Ledger(), ConservationCounter()
    found, unread = list[Violation](), 0
    for entry in log:
        if isinstance(entry, Malformed):
            unread += 1
            found.append(Violation(READABLE, entry.line, entry.i, entry.problem))
            _skip(checks, entry)
            continue
        for check in checks:
            for sentence in check.see(entry, ledger):
                found.append(Violation(check.name, entry.line, entry.i, sentence))
        counter.see(entry, ledger)
        ledger.record(entry)
    for check in checks:
        found.extend(Violation(check.name, 0, None, sentence) for sentence in check.finish(ledger))
    conservation = counter.result(ledger)
    if not conservation.holds:
        broken = [str(group) for group in conservation.groups if not group.holds]
        found.append(Violation(LAW, 0, None, "; ".join([str(conservation), *broken])))
    counted = Counter(violation.check for violation in found)
    counts = {name: counted[name] for name in (READABLE, *(check.name for check in checks), LAW)}
    notes = _notes(ledger, checks)
    if unread:
        notes.append(
            f"lines of the log that cannot be read: {unread}; they prove nothing, and what is said of entries behind "
            "them may come from that. The job's checkpoints do not depend on them"
        )
    return CheckResult(ledger.entries, counts, tuple(found), conservation, tuple(notes))


def _skip(checks: Sequence[LogCheck], malformed: Malformed) -> None:
    for check in checks:
        if isinstance(check, Indices):
            check.skip(malformed.i)


def _notes(ledger: Ledger, checks: Sequence[LogCheck]) -> list[str]:
    notes = []
    if ledger.stop is None:
        notes.append("the log has no stop entry: the job is still running, or was cut off")
    elif not ledger.stop.success:
        notes.append(f"the job failed: {ledger.stop.reason}")
    return notes + [remark for check in checks for remark in check.remarks(ledger)]
