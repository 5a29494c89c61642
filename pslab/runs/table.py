"""Runs side by side as a table: what was run, how well it went, how stale it was."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pslab.display.status import number
from pslab.runs.folder import Run
from psserver.policies.builtin import BUILTIN
from pswire.knobs import knobs_of


@dataclass(frozen=True, slots=True)
class Row:
    """One run's line. `policy` tells it from the others; `accuracy` is NaN without an evaluation."""

    run: str
    policy: str
    accuracy: float
    loss: float
    versions: int
    samples_per_second: float
    dropped: int
    mean_staleness: float
    max_staleness: int
    success: bool


def rows(runs: Iterable[Run]) -> list[Row]:
    """One row per run. Raises RunError when a run has no readable summary."""
    found = list(runs)
    return [_row(run, label) for run, label in zip(found, labels(found), strict=True)]


def _row(run: Run, label: str) -> Row:
    summary = run.summary
    return Row(
        run=str(run.path),
        policy=label,
        accuracy=summary.metric("accuracy"),
        loss=summary.metric("loss"),
        versions=summary.versions,
        samples_per_second=summary.samples_per_second,
        dropped=sum(counts.dropped for counts in summary.contributions.values()),
        mean_staleness=summary.mean_staleness,
        max_staleness=max(summary.histogram, default=0),
        success=summary.success,
    )


def policy_label(policy: Any) -> str:
    """``bounded (K=2, s<=4, drop)``: the policy's name and the knobs that tell runs apart."""
    name = str(policy.get("name", "?"))
    if name not in BUILTIN:
        return name
    knobs = {
        knob.name: (policy.get(knob.name, knob.default), knob.default) for knob in knobs_of(BUILTIN[name])
    }
    if label := BUILTIN[name].label:
        return f"{name} ({label.format(**{knob: value for knob, (value, _) in knobs.items()})})"
    told = [f"{knob} {value}" for knob, (value, default) in knobs.items() if value != default]
    return f"{name} ({', '.join(told)})" if told else name


def labels(runs: Sequence[Run]) -> list[str]:
    """Each run's policy; with the folder's name where two runs have the same policy."""
    plain = [policy_label(run.summary.policy) for run in runs]
    counts = Counter(plain)
    return [
        label if counts[label] == 1 else f"{label}, {run.name}"
        for label, run in zip(plain, runs, strict=True)
    ]


def worker_order(worker: str) -> tuple[str, int]:
    """A sort key that puts w10 behind w9."""
    head = worker.rstrip("0123456789")
    return head, int(worker[len(head) :] or 0)


def rich_table(lines: Sequence[Row]) -> Table:
    """The rows for a terminal."""
    table = Table(title="Runs", title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    for title in ("held-out\naccuracy", "versions", "samples\n/s", "dropped", "staleness\nmean, max"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in lines:
        table.add_row(
            Text(row.policy if row.success else f"{row.policy} (failed)", style="" if row.success else "red"),
            number(row.accuracy),
            str(row.versions),
            number(row.samples_per_second, 0),
            str(row.dropped),
            f"{number(row.mean_staleness, 2)}, {row.max_staleness}",
        )
    return table
