"""Staleness rule: how is a contribution treated that is tau versions behind?

tau is measured at the commit. It is the same at the Apply, because only an Apply changes the version, and an Apply
takes the whole buffer.
"""

from dataclasses import dataclass
from typing import Protocol

from psserver.policies.parts.view import Open, View
from pswire.values import value


@value
class Keep:
    """Keep the contribution, times `factor`. `compensation`: strength of its compensation; 0: none."""

    factor: float = 1.0
    compensation: float = 0.0


@value
class DropVerdict:
    """Never apply the contribution, for `reason`."""

    reason: str


Verdict = Keep | DropVerdict
"""The verdict on one contribution."""

# The verdict on most contributions.
IN_FULL = Keep()


class StalenessRule(Protocol):
    """Judges stale contributions. Derive from `KeepAll`, which keeps everything, and override what differs."""

    def judge(self, staleness: int) -> Verdict:
        """Return the verdict on a contribution that is `staleness` versions behind."""
        ...

    def blocked(self, view: View) -> bool:
        """Whether the next update must wait for open tickets."""
        ...

    def blockers(self, view: View) -> list[Open]:
        """Return the open tickets that hold up the next update. Not called for every event."""
        ...

    def delays_grants(self) -> bool:
        """Whether a ticket granted while an update waits would itself hold up that update."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether a worker may be granted its next ticket before it has committed the present one, which makes the
        next contribution a version older."""
        ...


class KeepAll(StalenessRule):
    """Every contribution counts in full, however old."""

    @property
    def ahead(self) -> bool:
        return True

    def judge(self, staleness: int) -> Verdict:
        return IN_FULL

    def blocked(self, view: View) -> bool:
        return False

    def blockers(self, view: View) -> list[Open]:
        return []

    def delays_grants(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class DropStale(KeepAll):
    """Guarantee: staleness <= bound. Older contributions are dropped as "stale"."""

    bound: int

    def judge(self, staleness: int) -> Verdict:
        if staleness <= self.bound:
            return IN_FULL
        return DropVerdict("stale")

    @property
    def ahead(self) -> bool:
        return self.bound >= 1


@dataclass(frozen=True, slots=True)
class Downweight(KeepAll):
    """Beyond the bound a contribution is weighted by (bound + 1) / (staleness + 1).

    With M = bound + 1 this is eta * M / max(M, tau) of Mishchenko et al.
    (2022), applied to the gradient and counting a fresh one as 1.
    """

    bound: int

    def judge(self, staleness: int) -> Verdict:
        if staleness <= self.bound:
            return IN_FULL
        return Keep(factor=(self.bound + 1) / (staleness + 1))


@dataclass(frozen=True, slots=True)
class Compensate(KeepAll):
    """Beyond the bound a gradient goes through the policy's compensator, with this strength.

    A strength of 0 is none. A compensator that learns from every gradient
    wants the fresh ones too: a bound of -1. The shards keep every base
    version that an open ticket needs.
    """

    bound: int
    strength: float

    def judge(self, staleness: int) -> Verdict:
        if staleness <= self.bound:
            return IN_FULL
        return Keep(compensation=self.strength)


@dataclass(frozen=True, slots=True)
class Block(KeepAll):
    """Guarantee: staleness <= bound and nothing dropped. The update waits for old tickets.

    An update makes version v + 1 and so ages every open ticket to
    ``v + 1 - base`` or more: it waits while that would pass the bound.
    """

    bound: int

    def blocked(self, view: View) -> bool:
        oldest = view.oldest_base()
        return oldest is not None and view.version + 1 - oldest > self.bound

    def blockers(self, view: View) -> list[Open]:
        return [t for t in view.open.values() if view.version + 1 - t.base > self.bound]

    def delays_grants(self) -> bool:
        # A ticket granted now has base v and would reach 1.
        return self.bound < 1

    @property
    def ahead(self) -> bool:
        return self.bound >= 1
