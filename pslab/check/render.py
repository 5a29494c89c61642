"""What a check found, for people and for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from pslab.check.checker import Verdict

SHOWN = 20  # violations of one promise that are printed; --json lists all


def verdict_lines(name: str, verdict: Verdict) -> Iterator[str]:
    """Lines of rich markup: one per promise, the violations below it, the law, the outcome."""
    for promise, count in verdict.kept.items():
        mark = "[green]kept[/green]  " if not count else "[red]BROKEN[/red]"
        times = f"  {count} {'time' if count == 1 else 'times'}" if count else ""
        yield f"  {mark}  {escape(promise)}{times}"
        broken = [violation for violation in verdict.violations if violation.promise == promise]
        for violation in broken[:SHOWN]:
            yield f"          {escape(str(violation))}"
        if count > SHOWN:
            yield f"          and {count - SHOWN} more (--json lists all)"
    yield f"  staleness law: {escape(str(verdict.law))}"
    for house in verdict.law.houses:
        yield f"    {escape(str(house))}"
    for note in verdict.notes:
        yield f"  [yellow]note[/yellow]: {escape(note)}"
    count = len(verdict.violations)
    outcome = "every promise is kept" if verdict.ok else f"{count} violation{'s' if count > 1 else ''}"
    yield f"{escape(name)}: {verdict.entries} entries, {outcome}"


def verdict_json(name: str, verdict: Verdict) -> dict[str, Any]:
    """Everything, as one JSON object."""
    law = verdict.law
    houses = [asdict(house) | {"expected": house.expected, "holds": house.holds} for house in law.houses]
    return {
        "run": name,
        "ok": verdict.ok,
        "entries": verdict.entries,
        "promises": verdict.kept,
        "violations": [asdict(violation) for violation in verdict.violations],
        "staleness_law": asdict(law) | {"houses": houses, "accounted": law.accounted, "holds": law.holds},
        "notes": list(verdict.notes),
    }
