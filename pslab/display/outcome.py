"""The outcome of a run as text and as JSON."""

import math
from pathlib import Path
from typing import Any

from rich.text import Text

from pslab.display.status import number
from pslab.launch.experiments import FinishedRun
from pslab.runs.folder import CHECKPOINTS, EXPERIMENT, LOGS, SIMULATED, Run, RunError, later_jobs
from pslab.runs.summary import Summary
from psserver.checkpoint import CheckpointError, Store
from psserver.policies.builtin import BUILTIN
from pswire.exits import ExitCode


def summary_of(finished: FinishedRun) -> Summary | None:
    """Return the run's summary, or None if there is none that can be read."""
    return _summary(finished.folder)


def _summary(folder: Path) -> Summary | None:
    try:
        run = Run(folder)
        return run.summary if run.stopped else None
    except RunError:
        return None  # The run failed, and its verdict says so.


def outcome_text(finished: FinishedRun) -> Text:
    """Return a few lines: the verdict, the final numbers and the run folder."""
    verdict, summary = finished.result.verdict, summary_of(finished)
    text = Text()
    if finished.result.ok:
        text.append("done", style="bold green").append(f": {_numbers(summary)}\n")
    elif verdict.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        text.append(f"{verdict.reason}\n", style="bold yellow")
    else:
        text.append(f"failed (exit code {verdict.code})", style="bold red").append(f": {verdict.reason}\n")
        for line in _last_words(finished):
            text.append(f"  | {line}\n")
    if summary is not None and summary.missing:
        text.append(f"not trained on: {summary.missing_text}\n", style="yellow")
    if summary is not None and summary.uncounted:
        text.append(f"did not count: {summary.uncounted}\n", style="yellow")
    if summary is not None and summary.kept_back:
        text.append(f"warning: {summary.kept_back}\n", style="yellow")
    if summary is not None and (sentence := stale_text(summary)):
        text.append(f"warning: {sentence}\n", style="yellow")
    if finished.result.ok:
        for warning in finished.result.warnings:
            text.append(f"warning: {warning}\n", style="yellow")
    elif (version := saved_version(finished.folder)) is not None:
        again = f"ps-lab run {finished.folder / EXPERIMENT} --out {finished.folder} --resume latest"
        text.append(f"version {version} is saved: resume with {again}\n")
    for job in later_jobs(finished.folder):
        text.append(f"later {job.name}: {_numbers(_summary(job))}\n")
    return text.append(f"run folder: {finished.folder}")


# The knob by which a policy drops what is too old.
_AGE_KNOBS = {"bounded": "max_staleness", "ringmaster": "threshold"}


def stale_text(summary: Summary) -> str:
    """Name the knob that made a run drop at least half of its contributions as too old; empty if none did."""
    name = str(summary.policy.get("name"))
    knob = _AGE_KNOBS.get(name, "")
    committed = sum(each.committed for each in summary.contributions.values())
    dropped = sum(each.dropped for each in summary.contributions.values())
    if not knob or knob not in summary.policy or not committed or 2 * dropped < committed:
        return ""
    value = summary.policy[knob]
    default = ", its default" if value == getattr(BUILTIN[name](), knob) else ""
    usual = (summary.workers - 1) / int(summary.policy.get("aggregate", 1))
    return (
        f"{100 * dropped / committed:.0f} % of all contributions were dropped as too old: policy.{knob} is "
        f"{value}{default}; {summary.workers} workers that are equally fast are {usual:.3g} versions behind on average"
    )


def saved_version(folder: Path) -> int | None:
    """Return the version of the newest complete checkpoint; None if there is none."""
    store = Store(folder / CHECKPOINTS)
    try:
        newest = store.newest()
    except CheckpointError:
        return None
    return None if newest is None else newest.version


def _last_words(finished: FinishedRun) -> list[str]:
    """Return the last output of the process that failed, or where to find it if it was shown before."""
    lines, culprit = finished.tail.splitlines(), finished.result.verdict.culprit
    if culprit is None or not (lines and finished.reported):
        return lines
    return [f"the output of {culprit} is above, and in {finished.folder / LOGS / culprit}.log"]


def _numbers(summary: Summary | None) -> str:
    if summary is None:
        return "but the servers wrote no summary"
    simulated = summary.job.startswith(SIMULATED)
    clock = "virtual s" if simulated else "s"
    facts = [
        f"{summary.versions} versions in {summary.wall_seconds:.1f} {clock}",
        f"{number(summary.samples_per_second, 0)} samples/s",
        *(
            f"{_words(name, simulated)} {number(_finite(value))}"
            for name, value in sorted(summary.metrics.items())
        ),
    ]
    return ", ".join(facts)


def _words(name: str, simulated: bool) -> str:
    """Say which data a metric is of. A simulated problem may be measured on all of its data."""
    if name == "training_loss":
        return "training loss"
    return name if simulated else f"held-out {name}"


def _finite(value: float | None) -> float:
    return math.nan if value is None else value


def outcome_json(finished: FinishedRun) -> dict[str, Any]:
    """Return the last line of `run --json`."""
    verdict, summary = finished.result.verdict, summary_of(finished)
    return {
        "event": "end",
        "code": int(verdict.code),
        "reason": verdict.reason,
        "tail": finished.tail,
        "folder": str(finished.folder),
        "warnings": list(finished.result.warnings),
        "metrics": dict(summary.metrics) if summary else {},
        "versions": summary.versions if summary else None,
        "missing": dict(summary.missing) if summary else {},
        "uncounted": summary.uncounted if summary else "",
    }
