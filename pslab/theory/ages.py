"""Staleness: what each policy gives for workers that ask again as soon as they have committed.

Every update makes every other held version one older, and a pull renews. So the sum of all
staleness and of the ages in flight is (n - w) T after T updates, w being the workers that wait
with what they have committed. It holds for any speeds; `pslab.check.conservation` proves it on a log, as integers.
What a policy gives is in its `Facts`.
"""

from collections.abc import Mapping
from typing import Any

from psserver.policies import Facts, PolicyError, facts

LAW = "conservation of staleness; Dutta et al. 2018 for the setting"


def facts_of(policy: Mapping[str, Any], workers: int) -> Facts | None:
    """Of the policy that a summary names, with every knob; None for one's own, and for knobs of another release."""
    knobs = {key: value for key, value in policy.items() if key != "name"}
    try:
        return facts(str(policy.get("name")), knobs, workers)
    except PolicyError:
        # The run was made by a release whose policy was another one: nothing is known here about it.
        return None


def buffered(policy: Mapping[str, Any], workers: int) -> int | None:
    """K, where nobody waits, nothing is dropped and a ticket is one batch; None for other policies."""
    known = facts_of(policy, workers)
    return known.size if known is not None and known.free == 1 and known.batches == 1 else None


def mean_staleness(policy: Mapping[str, Any], workers: int) -> tuple[float, str] | None:
    """(versions, formula), where there is a law for this policy and number of workers."""
    known = facts_of(policy, workers)
    if known is None or known.free is None or known.size is None:
        return None
    free = "1" if known.free == 1 else "K"
    formula = f"n - {free}" if known.size == 1 else f"(n - {free}) / K"
    return (workers - known.free) / known.size, formula


def max_staleness(policy: Mapping[str, Any], workers: int) -> tuple[int, str] | None:
    """(versions, formula) that no applied contribution may exceed, where the policy bounds it."""
    known = facts_of(policy, workers)
    if known is None or known.max_staleness is None:
        return None
    return known.max_staleness, known.limit
