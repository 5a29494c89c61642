"""What the log's first entry says about a policy's parts that see tensors, beside what the policy is known to use."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pslab.runs import log as e

Knobs = Mapping[str, Any]
# Compensator, aggregator, and the numbers of both.
Wanted = tuple[str | None, str, dict[str, float]]


def _corrected(name: str, decay: float, epsilon: float) -> Callable[[Knobs], Wanted]:
    def wanted(knobs: Knobs) -> Wanted:
        numbers = {
            "decay": float(knobs.get("decay", decay)),
            "epsilon": float(knobs.get("epsilon", epsilon)),
        }
        return name, "mean", numbers

    return wanted


def _bounded(knobs: Knobs) -> Wanted:
    return ("taylor" if knobs.get("on_stale") == "compensate" else None), "mean", {}


def _krum(knobs: Knobs) -> Wanted:
    return None, "krum", {"byzantine": int(knobs.get("byzantine", 0)), "select": int(knobs.get("select", 1))}


WANTED: Mapping[str, Callable[[Knobs], Wanted]] = {
    "bounded": _bounded,
    "dc-asgd": lambda knobs: ("taylor", "mean", {}),
    "dc-asgd-a": _corrected("adaptive-taylor", 0.95, 1e-7),
    "gap-aware": _corrected("gap-aware", 0.999, 1e-8),
    "median": lambda knobs: (None, "median", {}),
    "trimmed-mean": lambda knobs: (None, "trimmed-mean", {"trim": int(knobs.get("trim", 1))}),
    "krum": _krum,
}


def misdeclared(job: e.JobEntry) -> Iterator[str]:
    """Sentences about a declaration that is not that of the job's policy, one of the shelf; none without one."""
    if job.tensors is None:
        return
    name = str(job.policy.get("name"))
    said = (job.tensors.get("compensator"), job.tensors.get("aggregator"), job.tensors.get("knobs"))
    wanted = WANTED[name](job.policy) if name in WANTED else (None, "mean", {})
    if said != wanted:
        yield f"the shards were told to use {_spoken(said)}; {name} uses {_spoken(wanted)}"
    if wanted[1] == "krum" and job.servers > 1:
        yield f"krum compares whole gradients, but the model was divided over {job.servers} servers"


def _spoken(parts: tuple[object, object, object]) -> str:
    compensator, aggregator, knobs = parts
    return f"compensator {compensator or 'none'}, aggregator {aggregator}, numbers {knobs}"
