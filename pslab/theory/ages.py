"""Staleness: what each policy gives for workers that ask again as soon as they have committed.

Every update makes every other held version one older, and a pull renews. So the sum of all
staleness and of the ages in flight is (n - w) T after T updates, w being the workers that wait
with what they have committed. It holds for any speeds; `pslab.check.conservation` proves it on a log, as integers.
"""

from collections.abc import Mapping
from typing import Any

LAW = "conservation of staleness; Dutta et al. 2018 for the setting"

# Every contribution is applied, one by one.
SINGLE = ("async", "dc-asgd", "delay-adaptive")
# Nobody ever waits, nothing is dropped, K make an update.
BUFFERED = ("k-batch-async", "fedbuff", "softsync")
FRESH = ("sync", "k-sync", "k-batch-sync", "rennala")


def buffered(policy: Mapping[str, Any], workers: int) -> int | None:
    """K, where nobody waits and nothing is dropped; None for other policies."""
    name = policy.get("name")
    if name in SINGLE:
        return 1
    if name == "softsync":
        return max(1, workers // int(policy["n"]))
    if name in BUFFERED:
        return int(policy["aggregate"])
    if name == "bounded" and policy["on_stale"] in ("downweight", "compensate"):
        return int(policy["aggregate"])
    return None


def mean_staleness(policy: Mapping[str, Any], workers: int) -> tuple[float, str] | None:
    """(versions, formula), where there is a law for this policy and number of workers."""
    together = buffered(policy, workers)
    if together is not None:
        return (workers - 1) / together, "n - 1" if together == 1 else "(n - 1) / K"
    if policy.get("name") == "k-async":
        together = int(policy["aggregate"])
        return (workers - together) / together, "(n - K) / K"
    return None


def max_staleness(policy: Mapping[str, Any]) -> tuple[int, str] | None:
    """(versions, formula) that no applied contribution may exceed, where the policy bounds it."""
    name = policy.get("name")
    if name in FRESH:
        return 0, "0"
    if name == "bounded" and policy["on_stale"] in ("drop", "block"):
        return int(policy["max_staleness"]), "max_staleness"
    if name == "ringmaster":
        return int(policy["threshold"]) - 1, "threshold - 1"
    return None
