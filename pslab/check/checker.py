"""Runs every promise over a log, once, line by line."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pslab.check.conservation import Conservation, Law
from pslab.check.ledger import Ledger
from pslab.check.policies.guarantee import PolicyGuarantee
from pslab.check.promise import LogCheck, Violation
from pslab.check.promises.members import Members
from pslab.check.promises.metrics import MetricsAgree
from pslab.check.promises.order import Clock, Frame, Indices
from pslab.check.promises.summary import SummaryAgrees
from pslab.check.promises.sums import Folds, Turns, Weights
from pslab.check.promises.tickets import Accounting, OneAtATime, TicketLife
from pslab.check.promises.times import WorkersTimes
from pslab.check.promises.versions import Staleness, Versions
from pslab.check.promises.weights import WeightsAgree
from pslab.runs import log as e
from pslab.runs.folder import WEIGHTS, Run, RunError, Summary

READABLE = "entries"
LAW = "staleness law"


@dataclass(frozen=True)
class Verdict:
    """What a check found. `kept` counts violations per promise, 0 for a promise that holds."""

    entries: int
    kept: dict[str, int]
    violations: tuple[Violation, ...]
    law: Conservation
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def promises() -> list[LogCheck]:
    """Every promise about a log by itself, in the order in which reports print them."""
    return [
        Indices(),
        Clock(),
        Frame(),
        Members(),
        TicketLife(),
        OneAtATime(),
        Accounting(),
        WorkersTimes(),
        Versions(),
        Staleness(),
        Weights(),
        Folds(),
        Turns(),
        PolicyGuarantee(),
    ]


def check_run(run: Run) -> Verdict:
    """Check a run folder: its log, and that summary, metrics and weights agree."""
    summary: Summary | RunError | None = None
    if run.stopped:
        try:
            summary = run.summary
        except RunError as error:
            summary = error
    more: list[LogCheck] = [SummaryAgrees(summary), MetricsAgree(run.metrics())]
    if isinstance(summary, Summary):
        more.append(WeightsAgree(run.path / WEIGHTS, summary.weights_sha256))
    return check_log(run.lines(), more)


def check_log(log: Iterable[e.Entry | e.Malformed], more: Sequence[LogCheck] = ()) -> Verdict:
    """Check a decision log. Never stops at the first violation; keeps one ticket record per ticket."""
    checks, ledger, law = [*promises(), *more], Ledger(), Law()
    found: list[Violation] = []
    for entry in log:
        if isinstance(entry, e.Malformed):
            found.append(Violation(READABLE, entry.line, entry.i, entry.problem))
            _skip(checks, entry)
            continue
        for check in checks:
            for sentence in check.see(entry, ledger):
                found.append(Violation(check.name, entry.line, entry.i, sentence))
        law.see(entry, ledger)
        ledger.record(entry)
    for check in checks:
        found.extend(Violation(check.name, 0, None, sentence) for sentence in check.finish(ledger))
    conservation = law.conclude(ledger)
    if not conservation.holds:
        broken = [str(house) for house in conservation.houses if not house.holds]
        found.append(Violation(LAW, 0, None, "; ".join([str(conservation), *broken])))
    counts = Counter(violation.promise for violation in found)
    names = [READABLE, *(check.name for check in checks), LAW]
    kept = {name: counts[name] for name in names}
    return Verdict(ledger.entries, kept, tuple(found), conservation, tuple(_notes(ledger, checks)))


def _skip(checks: Sequence[LogCheck], malformed: e.Malformed) -> None:
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
