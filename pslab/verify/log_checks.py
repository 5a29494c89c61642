"""What policies of the shelf promise themselves, beyond the contract of all."""

from collections.abc import Mapping, Sequence

from pslab.verify.breach import expect
from psserver.coordinator.entries import AppliedPart
from psserver.policies.builtin import SHELF

LOCAL = ("local-sgd", "diloco")
ROBUST = ("median", "trimmed-mean", "krum")
FRESH = ("sync", "k-sync", "k-batch-sync", "rennala", *ROBUST, *LOCAL)
ONE_AT_A_TIME = (
    *("async", "ssp", "dssp", "delay-adaptive", "ringmaster"),
    *("dc-asgd", "dc-asgd-a", "gap-aware", "local-async", "easgd", "dana-slim"),
)
DISTINCT = ("sync", "k-sync", "k-async", *ROBUST, *LOCAL)
# Name, then its knobs on_stale, late and stops: those that drop what is stale.
DROPPING = (["bounded", "drop"], ["k-sync", "drop"], ["rennala"], ["ringmaster", False])


class Promises:
    """Of the policy `name` with these knobs; of one that is not on the shelf, none. Raises Breach."""

    def __init__(self, name: str, knobs: Mapping[str, object]) -> None:
        self._name = name if name in SHELF else ""
        self._knobs = dict(knobs) if self._name else {}

    @property
    def explained(self) -> bool:
        """It names who can end a wait; of others it is enough that they say what is waited for."""
        return bool(self._name)

    def applied(self, parts: Sequence[AppliedPart]) -> None:
        staleness, workers = [p.staleness for p in parts], [p.worker for p in parts]
        if self._name in ONE_AT_A_TIME:
            expect(len(workers) == 1, f"{self._name} applies one gradient at a time, here {len(workers)}")
        if self._name in DISTINCT:
            expect(
                len(set(workers)) == len(workers), f"{self._name} takes one gradient per worker: {workers}"
            )
        if self._name in ROBUST:
            fewest = self._fewest()
            expect(len(workers) >= fewest, f"{self._name} needs {fewest} gradients, got {workers}")
        bound = self._bound()
        if bound is not None:
            expect(max(staleness) <= bound, f"{self._name} applies staleness {staleness}, bound {bound}")
        if self._knobs.get("on_stale") != "block" and "aggregate" in self._knobs:
            size = self._number("aggregate")
            expect(len(workers) <= size, f"{self._name} applies {len(workers)} gradients, at most {size}")

    def dropped(self, staleness: int, reason: str, pending: int) -> None:
        """`pending`: contributions that are committed and undecided, without this one."""
        if reason == "stopped" or not self._name:
            return
        if reason == "too few":
            # Those before it, too: they are dropped together.
            enough = pending + 1 >= self._fewest()
            expect(staleness == 0 and not enough, f"{self._name} drops {pending + 1} as too few")
            return
        bound = self._bound()
        how = [self._name, *(self._knobs[k] for k in ("on_stale", "late", "stops") if k in self._knobs)]
        expect(
            reason == "stale" and bound is not None and staleness > bound and how in DROPPING,
            f"{how} drops a gradient of staleness {staleness}: {reason}",
        )

    def started(self, worker: str, ahead: int) -> None:
        """`ahead`: clocks between the worker, which is granted a ticket, and the slowest."""
        if self._name not in ("ssp", "dssp") or self._knobs.get("literal"):
            return
        slack = self._number("slack" if self._name == "ssp" else "upper")
        expect(ahead <= slack, f"{worker} starts {ahead} clocks ahead of the slowest, slack {slack}")

    def _bound(self) -> int | None:
        """The largest staleness that may be applied."""
        if self._name in FRESH:
            return 0
        if self._name == "bounded" and self._knobs["on_stale"] in ("drop", "block"):
            return self._number("max_staleness")
        return self._number("threshold") - 1 if self._name == "ringmaster" else None

    def _fewest(self) -> int:
        """The least number of contributions of which a robust aggregate may be made."""
        trim, byzantine = self._knobs.get("trim", 0), self._knobs.get("byzantine", -1)
        assert isinstance(trim, int) and isinstance(byzantine, int)
        return max(2 * trim + 1, 2 * byzantine + 3)

    def _number(self, knob: str) -> int:
        value = self._knobs[knob]
        assert isinstance(value, int)
        return value
