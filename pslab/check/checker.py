"""All checks over a log, in one pass; the result for people and for programs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.markup import escape

from pslab.check.changes import ChangesCheck
from pslab.check.conservation import Conservation, ConservationCounter
from pslab.check.guarantee import PolicyGuarantee
from pslab.check.log_check import LogCheck, Violation
from pslab.check.members import Members, Rates, WorkersTimes
from pslab.check.ordering import Clock, Frame, Indices, Resumptions, TimersCheck
from pslab.check.run_files import MetricsAgree, SummaryAgrees, WeightsAgree
from pslab.check.tickets import Accounting, OneAtATime, TicketLife, WorkUnitsCheck
from pslab.check.updates import Folds, KeptBackCheck, Staleness, TurnsCheck, VersionsCheck, WeightsCheck
from pslab.runs.fold import LogState
from pslab.runs.folder import WEIGHTS, Run, RunError
from pslab.runs.log import Line, Malformed
from pslab.runs.summary import Summary

READABLE = "entries"
LAW = "staleness law"


@dataclass(frozen=True)
class CheckResult:
    """The result of all checks. `counts`: violations by check, 0 for a check that passed."""

    entries: int
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    conservation: Conservation
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.violations


def log_checks() -> list[LogCheck]:
    """Return all checks of a log by itself, in the order in which reports print them."""
    return [
        Indices(),
        Clock(),
        Frame(),
        TimersCheck(),
        Members(),
        TicketLife(),
        OneAtATime(),
        Accounting(),
        WorkUnitsCheck(),
        WorkersTimes(),
        VersionsCheck(),
        Rates(),
        Staleness(),
        WeightsCheck(),
        Folds(),
        TurnsCheck(),
        KeptBackCheck(),
        Resumptions(),
        ChangesCheck(),
        PolicyGuarantee(),
    ]


def check_run(run: Run) -> CheckResult:
    """Check a run folder: its log, and that summary, metrics and weights agree with it.

    A run without a summary was cut off or is still running: its log is checked up to the last whole line, with a note.
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
    """Check a decision log to its end, whatever it violates. Keeps one record per ticket in memory."""
    checks, state, counter = [*log_checks(), *more], LogState(remember=True), ConservationCounter()
    seeing = [check for check in checks if type(check).see is not LogCheck.see]
    found, unread = list[Violation](), 0
    for entry in log:
        if isinstance(entry, Malformed):
            unread += 1
            found.append(Violation(READABLE, entry.line, entry.i, entry.problem))
            _skip(checks, entry)
            continue
        for check in seeing:
            for sentence in check.see(entry, state):
                found.append(Violation(check.name, entry.line, entry.i, sentence))
        counter.see(entry, state)
        state.see(entry.fact, entry.t)
    for check in checks:
        found.extend(Violation(check.name, 0, None, sentence) for sentence in check.finish(state))
    conservation = counter.result(state)
    if not conservation.holds:
        found.append(Violation(LAW, 0, None, str(conservation)))
    counted = Counter(violation.check for violation in found)
    counts = {name: counted[name] for name in (READABLE, *(check.name for check in checks), LAW)}
    notes = _notes(state, checks)
    if unread:
        notes.append(
            f"{unread} lines of the log cannot be read, which may also cause the violations of entries after them. The "
            "job's checkpoints do not depend on them"
        )
    return CheckResult(state.entries, counts, tuple(found), conservation, tuple(notes))


def _skip(checks: Sequence[LogCheck], malformed: Malformed) -> None:
    for check in checks:
        if isinstance(check, Indices):
            check.skip(malformed.i)


def _notes(state: LogState, checks: Sequence[LogCheck]) -> list[str]:
    notes = []
    if state.stop is None:
        notes.append("the log has no stop entry: the job is still running, or was cut off")
    elif not state.stop.success:
        notes.append(f"the job failed: {state.stop.reason}")
    return notes + [remark for check in checks for remark in check.remarks(state)]


# Violations of one check that are printed; --json lists all.
SHOWN = 20


def result_lines(name: str, result: CheckResult) -> Iterator[str]:
    """Yield lines of rich markup: each check with its violations, the staleness law, the notes, the outcome."""
    for check, count in result.counts.items():
        mark = "[green]passed[/green]" if not count else "[red]FAILED[/red]"
        times = f"  {count} {'time' if count == 1 else 'times'}" if count else ""
        yield f"  {mark}  {escape(check)}{times}"
        found = [violation for violation in result.violations if violation.check == check]
        for violation in found[:SHOWN]:
            yield f"          {escape(str(violation))}"
        if count > SHOWN:
            yield f"          and {count - SHOWN} more (--json lists all)"
    yield f"  staleness law: {escape(str(result.conservation))}"
    for note in result.notes:
        yield f"  [yellow]note[/yellow]: {escape(note)}"
    count = len(result.violations)
    outcome = "all checks passed" if result.ok else f"{count} violation{'s' if count > 1 else ''}"
    yield f"{escape(name)}: {result.entries} entries, {outcome}"


def result_json(name: str, result: CheckResult) -> dict[str, Any]:
    """Return the whole result as one JSON object."""
    law = result.conservation
    return {
        "run": name,
        "ok": result.ok,
        "entries": result.entries,
        "checks": result.counts,
        "violations": [asdict(violation) for violation in result.violations],
        "staleness_law": asdict(law) | {"accounted": law.accounted, "holds": law.holds},
        "notes": list(result.notes),
    }
