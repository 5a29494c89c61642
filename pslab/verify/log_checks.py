"""Holds a built-in policy to its own `Facts`, beyond the contract of all policies."""

from collections.abc import Mapping, Sequence

from pslab.verify.violation import expect
from psserver.policies import facts
from pswire.decisions.entries import NONFINITE, Part


class FactsCheck:
    """Of the policy `name` with these knobs in a job of `workers`; a policy of one's own makes none.

    Methods raise InvariantViolation.
    """

    def __init__(self, name: str, knobs: Mapping[str, object], workers: int) -> None:
        self._name = name
        self._facts = facts(name, knobs, workers)

    @property
    def explained(self) -> bool:
        """It names who can end a wait; of others it is enough that they say what is waited for."""
        return self._facts is not None

    def applied(self, parts: Sequence[Part]) -> None:
        """The contributions of one update."""
        if self._facts is None:
            return
        name, known = self._name, self._facts
        staleness, workers = [p.staleness for p in parts], [p.worker for p in parts]
        if known.size is not None:
            expect(
                len(workers) <= known.size,
                f"{name} applies at most {known.size} gradients at a time, here {len(workers)}",
            )
        if known.distinct:
            expect(len(set(workers)) == len(workers), f"{name} takes one gradient per worker: {workers}")
        expect(len(workers) >= known.fewest, f"{name} needs {known.fewest} gradients, got {workers}")
        bound = known.max_staleness
        if bound is not None:
            expect(max(staleness) <= bound, f"{name} applies staleness {staleness}, bound {bound}")

    def dropped(self, staleness: int, reason: str, pending: int) -> None:
        """`pending`: contributions that are committed and undecided, without this one."""
        if self._facts is None or reason in ("stopped", NONFINITE):
            return
        name, known = self._name, self._facts
        if reason == "too few":
            # Those before it, too: they are dropped together.
            enough = pending + 1 >= known.fewest
            expect(staleness == 0 and not enough, f"{name} drops {pending + 1} as too few")
            return
        if reason == "no samples":
            expect(known.by_samples, f"{name} drops a gradient for want of samples, which it does not count")
            return
        bound = known.max_staleness
        expect(
            reason == "stale" and known.drops and bound is not None and staleness > bound,
            f"{name} drops a gradient of staleness {staleness}: {reason}",
        )

    def started(self, worker: str, ahead: int) -> None:
        """`ahead`: clocks between the worker, which is granted a ticket, and the slowest."""
        if self._facts is None or self._facts.max_lead is None:
            return
        slack = self._facts.max_lead
        expect(ahead <= slack, f"{worker} starts {ahead} clocks ahead of the slowest, slack {slack}")
