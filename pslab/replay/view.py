"""The results of replays and what-ifs, for people and for programs."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from pslab.replay.execution import Replayed
from pslab.replay.run_folder import Proof
from pslab.replay.whatif import Alternative
from pslab.runs.fold import Fold, mean_of
from pslab.runs.labels import worker_order

# Characters of the bar of 100 %.
BAR = 20


def replayed_lines(replayed: Replayed, proof: Proof | None) -> list[str]:
    """Return a few sentences: what was computed, and the first difference if there is one."""
    lines = [
        f"version {replayed.version}: {replayed.agreed} of {replayed.computed} contributions recomputed "
        "with the logged loss, to the bit, and the logged norm of the gradient"
    ]
    if replayed.skipped:
        lines.append(f"{replayed.skipped} were left out: nothing depends on them")
    if replayed.kept:
        lines.append(f"{replayed.kept} elements were kept back, because they would not be finite here either")
    if replayed.first is not None:
        lines.append(f"first difference: {replayed.first}")
        if replayed.proven >= 0:
            lines.append(f"up to version {replayed.proven} every recomputed contribution agreed")
    if proof is not None:
        lines += _proof_lines(replayed, proof)
    return lines


def _proof_lines(replayed: Replayed, proof: Proof) -> list[str]:
    if proof.holds:
        return [f"the final weights are equal bit for bit: {proof.sha256}"]
    if proof.recorded is None:
        return [f"the run recorded no weights_sha256 to compare with; here it is {proof.sha256}"]
    lines = [f"the final weights differ: expected {proof.recorded}, got {proof.sha256}"]
    if not proof.repeats:
        lines.append(
            "  the run was made without run.deterministic, on several threads per worker, whose sums need not repeat "
            "to the bit: that alone may be the difference; ps-lab run --deterministic makes a run that replays"
        )
    for name, gap in proof.differing.items():
        lines.append(f"  {name}: differs by at most {gap:.3g}")
    if not proof.differing:
        lines.append("  but they are equal to weights.safetensors: summary.json or that file was edited")
    elif replayed.first is None:
        lines.append(
            f"  every contribution agreed, the last one read version {replayed.proven}: what differs came after it"
        )
    return lines


def replayed_json(folder: str, replayed: Replayed, proof: Proof | None) -> dict[str, Any]:
    first = replayed.first
    return {
        "event": "replay",
        "folder": folder,
        "version": replayed.version,
        "computed": replayed.computed,
        "agreed": replayed.agreed,
        "skipped": replayed.skipped,
        "equal": None if proof is None else proof.holds,
        "weights_sha256": None if proof is None else proof.sha256,
        "recorded_sha256": None if proof is None else proof.recorded,
        "proven_version": replayed.proven,
        "first_difference": None
        if first is None
        else {name: _plain(getattr(first, name)) for name in first.__slots__} | {"text": str(first)},
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# What if


def _fates_json(log: Fold) -> dict[str, Any]:
    histogram = log.histogram
    return {
        "policy": dict(log.policy),
        "versions": log.versions,
        "committed": dict(log.committed),
        "applied": dict(log.applied),
        "dropped": dict(log.dropped),
        "cancelled": dict(log.cancelled),
        "reasons": dict(log.reasons),
        "staleness": {str(tau): histogram[tau] for tau in sorted(histogram)},
    }


def alternative_json(folder: str, found: Alternative) -> dict[str, Any]:
    return {
        "event": "what-if",
        "folder": folder,
        "recorded": _fates_json(found.recorded),
        "other": _fates_json(found.other),
        "held": found.held,
        "never": found.never,
        "failure": found.failure,
    }


def alternative_table(found: Alternative) -> Table:
    """Return a table of both policies side by side."""
    recorded, other = found.recorded, found.other
    ages, other_ages = recorded.histogram, other.histogram
    table = Table(title="The same schedule", title_justify="left", header_style="bold")
    table.add_column("")
    table.add_column(f"recorded: {_policy_text(recorded.policy)}", justify="right")
    table.add_column(f"what if: {_policy_text(other.policy)}", justify="right")
    for what, left, right in (
        ("versions", recorded.versions, other.versions),
        ("committed", recorded.committed.total(), other.committed.total()),
        ("applied", recorded.applied.total(), other.applied.total()),
        ("dropped", recorded.dropped.total(), other.dropped.total()),
        ("cancelled", recorded.cancelled.total(), other.cancelled.total()),
        ("mean staleness", *(f"{mean_of(each) if each else 0:.2f}" for each in (ages, other_ages))),
        ("max staleness", max(ages, default=0), max(other_ages, default=0)),
    ):
        table.add_row(what, str(left), str(right))
    for worker in sorted(recorded.committed | other.committed, key=worker_order):
        table.add_row(f"applied of {worker}", str(recorded.applied[worker]), str(other.applied[worker]))
    table.add_section()
    for low, high in _bins(ages + other_ages):
        label = f"staleness {low}" if low == high else f"staleness {low}-{high}"
        table.add_row(label, _bar(ages, low, high), _bar(other_ages, low, high))
    return table


def alternative_notes(found: Alternative) -> list[str]:
    """Return the sentences that explain the table."""
    notes = []
    if found.held:
        notes.append(
            f"{found.held} computations ended in the recorded run before {found.other.policy['name']} would have "
            "granted them: they were postponed, and count as ended when they are granted"
        )
    if found.never:
        notes.append(
            f"{found.never} computations would never have been granted, or were lost with their worker"
        )
    if found.failure:
        notes.append(f"{found.other.policy['name']} would have ended the job: {found.failure}")
    return notes


def _policy_text(policy: Mapping[str, object]) -> str:
    knobs = ", ".join(f"{name}={value}" for name, value in policy.items() if name != "name")
    return f"{policy.get('name')} ({knobs})" if knobs else str(policy.get("name"))


def _bins(histogram: Counter[int]) -> list[tuple[int, int]]:
    """Return the bins that are not empty: 0 to 9 one by one, then by powers of two."""
    bins = [(tau, tau) for tau in range(10)]
    low, high = 10, 16
    while low <= max(histogram, default=0):
        bins.append((low, high - 1))
        low, high = high, high * 2
    return [(a, b) for a, b in bins if any(histogram[tau] for tau in range(a, b + 1))]


def _bar(histogram: Counter[int], low: int, high: int) -> Text:
    count = sum(histogram[tau] for tau in range(low, high + 1))
    length = round(BAR * count / histogram.total()) if count else 0
    return Text.assemble(("▇" * length, "cyan"), f" {count}" if length else str(count))
