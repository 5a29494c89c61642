"""Checks of a disturbed run, and the report of a campaign."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pslab.chaos import one_history
from pslab.chaos.campaign import Outcome
from pslab.check.checker import check_run
from pslab.launch.exits import RunResult
from pslab.runs.folder import CHECKPOINTS, Run, RunError
from psserver.checkpoint import CheckpointError, Store
from pswire.decisions import entries as e

ACCURACY = "accuracy"


@dataclass(slots=True)
class Round:
    """One disturbed run.

    `seed`: of its disturbances. `problems`: sentences, empty if everything holds. `undone`: versions and commits that
    rollbacks removed from the log and that were computed again.
    """

    folder: Path
    seed: int
    outcomes: list[Outcome]
    problems: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    undone: Counter[str] = field(default_factory=Counter)
    versions: int = 0


def judge(
    folder: Path,
    seed: int,
    result: RunResult,
    outcomes: list[Outcome],
    alone: Run | None,
    tolerance: float,
    *,
    copies: bool = False,
) -> Round:
    """Check a run: it succeeds, its log passes the check, its checkpoints are whole, and no batch counts twice.

    `alone`: an undisturbed run, or None. The accuracy must be at least its minus `tolerance`, if it measures one.
    `copies`: the job has replicas, so it keeps what `one_history` says.
    """
    found = Round(folder, seed, outcomes)
    if not result.ok:
        found.problems.append(f"exit code {int(result.verdict.code)}: {result.verdict.reason}")
    try:
        run = Run(folder)
        found.versions = run.summary.versions
        found.metrics = {name: v for name, v in run.summary.metrics.items() if v is not None}
        found.problems += [f"check: {violation}" for violation in check_run(run).violations]
        found.problems += _counted_twice(run)
        found.undone = one_history.voided(folder) if copies else undone(folder)
        if copies and result.ok:
            found.problems += one_history.problems(run, alone)
    except RunError as error:
        found.problems.append(str(error))
    found.problems += _damaged(folder)
    wanted, accuracy = accuracy_of(alone), found.metrics.get(ACCURACY, math.nan)
    if result.ok and wanted is not None and not accuracy >= wanted - tolerance:
        found.problems.append(f"accuracy {accuracy:.4g}, expected {wanted:.4g}, that of the undisturbed run")
    return found


def accuracy_of(alone: Run | None) -> float | None:
    """Return the accuracy of an undisturbed run; None if there was none, or it measures none."""
    return None if alone is None else alone.summary.metrics.get(ACCURACY)


def _counted_twice(run: Run) -> Iterable[str]:
    """Check every batch of workers' own data; for dealt data, `ps-lab check` does."""
    commits: Counter[tuple[str, int]] = Counter()
    for entry in run.decisions():
        if isinstance(entry.fact, e.Work):
            return
        # A commit without samples belongs to no batch.
        if isinstance(entry.fact, e.Commit) and entry.fact.samples:
            commits[entry.fact.worker, entry.fact.batch] += 1
    for (worker, batch), count in commits.items():
        if count > 1:
            yield f"batch {batch} of {worker} was committed {count} times"


def _damaged(folder: Path) -> Iterable[str]:
    store = Store(folder / CHECKPOINTS)
    for name in store.names():
        if (store.root / name / "manifest.json").is_file():
            try:
                store.verify(name)
            except CheckpointError as error:
                yield f"checkpoint: {error}"


def undone(folder: Path) -> Counter[str]:
    """Count applies and commits among the entries that rollbacks moved to other files."""
    counts: Counter[str] = Counter()
    for file in folder.glob("decisions.void-*.jsonl"):
        for line in file.read_bytes().splitlines():
            try:
                counts[json.loads(line)["kind"]] += 1
            except (ValueError, KeyError, TypeError):
                # The server was killed while it wrote this line.
                continue
    return Counter({kind: counts[kind] for kind in ("apply", "commit")})


def as_json(rounds: Sequence[Round], wanted: float | None) -> dict[str, Any]:
    """Return the report for programs. `wanted`: accuracy of the undisturbed run."""
    return {
        "event": "chaos",
        "ok": not any(each.problems for each in rounds),
        "accuracy_left_alone": wanted,
        "rounds": [
            {
                "folder": str(each.folder),
                "seed": each.seed,
                "problems": each.problems,
                "versions": each.versions,
                "metrics": each.metrics,
                "versions_undone": each.undone["apply"],
                "batches_computed_again": each.undone["commit"],
                "disturbances": [
                    {
                        "kind": o.disturbance.kind,
                        "name": o.disturbance.name,
                        "role": o.disturbance.role,
                        "version": o.version,
                        "rolled_back": o.rolled_back,
                        "seconds_to_next_version": o.seconds,
                    }
                    for o in each.outcomes
                ],
            }
            for each in rounds
        ],
    }


def text(rounds: Sequence[Round], wanted: float | None) -> str:
    """Return the report for people: a line for each kind of disturbance, and for each run with its problems.

    `wanted`: accuracy of the undisturbed run.
    """
    outcomes = [outcome for each in rounds for outcome in each.outcomes]
    lines = [f"{'':19}{'times':>6}{'to the next version, s':>26}{'versions rolled back':>24}"]
    lines.append(f"{'':19}{'':>6}{'median':>14}{'longest':>12}{'mean':>12}{'most':>12}")
    groups = sorted({(o.disturbance.role, o.disturbance.kind) for o in outcomes})
    lines += [
        _row(
            f"{role} {kind}",
            [o for o in outcomes if (o.disturbance.role, o.disturbance.kind) == (role, kind)],
        )
        for role, kind in groups
    ]
    servers = [outcome for outcome in outcomes if outcome.disturbance.role != "worker"]
    if servers:
        lines.append(_row("all servers", servers))
    last = sum(outcome.seconds is None for outcome in outcomes)
    if last:
        lines.append(f"{last} of them had no next version, for the job ended before one")
    commits, applies = (sum(each.undone[kind] for each in rounds) for kind in ("commit", "apply"))
    lines.append(
        f"{len(outcomes)} disturbances in {len(rounds)} runs; {applies} versions were undone, and {commits} batches "
        "computed again"
    )
    if any(outcome.rolled_back for outcome in outcomes):
        lines.append("(a rollback after several disturbances stands in the row of each)")
    for each in rounds:
        line = f"{each.folder.name}: seed {each.seed}, {len(each.outcomes)} disturbances, {each.versions} versions"
        lines.append(line + _accuracy(each, wanted))
        lines += [f"{each.folder}: {problem}" for problem in each.problems]
    held = not any(each.problems for each in rounds)
    lines.append("every run ended as promised" if held else "NOT every run ended as promised")
    return "\n".join(lines)


def _row(name: str, of: Sequence[Outcome]) -> str:
    seconds = [o.seconds for o in of if o.seconds is not None]
    back = [o.rolled_back or 0 for o in of]
    middle = f"{statistics.median(seconds):14.2f}{max(seconds):12.2f}" if seconds else f"{'-':>14}{'-':>12}"
    return f"{name:19}{len(of):6}{middle}{statistics.mean(back):12.1f}{max(back):12}"


def _accuracy(of: Round, wanted: float | None) -> str:
    """Return the accuracy; empty for a job that measures none."""
    if ACCURACY not in of.metrics:
        return ""
    alone = "" if wanted is None else f" ({wanted:.4g} undisturbed)"
    return f", accuracy {of.metrics[ACCURACY]:.4g}{alone}"
