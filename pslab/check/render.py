"""What a check found, for people and for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from pslab.check.checker import CheckResult

SHOWN = 20  # violations of one check that are printed; --json lists all


def result_lines(name: str, result: CheckResult) -> Iterator[str]:
    """Lines of rich markup: one per check, the violations below it, the law of conservation, the outcome."""
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
    for group in result.conservation.groups:
        yield f"    {escape(str(group))}"
    for note in result.notes:
        yield f"  [yellow]note[/yellow]: {escape(note)}"
    count = len(result.violations)
    outcome = "all checks passed" if result.ok else f"{count} violation{'s' if count > 1 else ''}"
    yield f"{escape(name)}: {result.entries} entries, {outcome}"


def result_json(name: str, result: CheckResult) -> dict[str, Any]:
    """Everything, as one JSON object."""
    law = result.conservation
    groups = [asdict(group) | {"expected": group.expected, "holds": group.holds} for group in law.groups]
    return {
        "run": name,
        "ok": result.ok,
        "entries": result.entries,
        "checks": result.counts,
        "violations": [asdict(violation) for violation in result.violations],
        "staleness_law": asdict(law) | {"groups": groups, "accounted": law.accounted, "holds": law.holds},
        "notes": list(result.notes),
    }
