"""A policy of a user's own, composed of parts that are there: K-async.

An update takes the gradients of K distinct workers; who contributed waits for it, the others are not disturbed.
Dutta et al. 2018, "Slow and Stale Gradients Can Win the Race", section 2.
"""

from psserver.policies import ComposedPolicy, Composition, Everyone, KeepAll, WaitForUpdate


class KAsync(ComposedPolicy):
    def __init__(self, workers: int, k: int) -> None:
        # All but n - k of n; of all that are left when fewer than k are.
        trigger = Everyone(workers, backup=workers - k)
        super().__init__(Composition(WaitForUpdate(), trigger, KeepAll()), name="k-of-n")
