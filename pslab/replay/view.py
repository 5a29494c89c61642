"""The result of a replay, for people and for programs."""

import math
from typing import Any

from pslab.replay.execution import Replayed
from pslab.replay.run_folder import Proof


def replayed_lines(replayed: Replayed, proof: Proof) -> list[str]:
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
    return lines + _proof_lines(replayed, proof)


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


def replayed_json(folder: str, replayed: Replayed, proof: Proof) -> dict[str, Any]:
    first = replayed.first
    return {
        "event": "replay",
        "folder": folder,
        "version": replayed.version,
        "computed": replayed.computed,
        "agreed": replayed.agreed,
        "skipped": replayed.skipped,
        "equal": proof.holds,
        "weights_sha256": proof.sha256,
        "recorded_sha256": proof.recorded,
        "proven_version": replayed.proven,
        "first_difference": None
        if first is None
        else {name: _plain(getattr(first, name)) for name in first.__slots__} | {"text": str(first)},
    }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
