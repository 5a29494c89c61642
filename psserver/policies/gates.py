"""Gate: may this worker start its next unit of work?"""

from dataclasses import dataclass
from typing import Protocol

from psserver.policies.policy import Waiting
from psserver.policies.view import Member, View


class Gate(Protocol):
    def hold(self, view: View, member: Member) -> Waiting | None:
        """None: it may start. Otherwise why not."""
        ...


class Immediate:
    """Nobody ever waits."""

    def hold(self, view: View, member: Member) -> Waiting | None:
        return None


class Flush:
    """A worker that contributed to the coming update waits for it."""

    def hold(self, view: View, member: Member) -> Waiting | None:
        contributed = view.contributors()
        if member.worker not in contributed:
            return None
        missing = tuple(m.worker for m in view.active() if m.worker not in contributed)
        return Waiting(f"version {view.version + 1}, which needs a commit of {listed(missing)}", missing)


@dataclass(frozen=True, slots=True)
class Slack:
    """A worker runs at most `slack` clocks ahead of the slowest active one (SSP; Ho et al. 2013, §3).

    A worker whose clock is c has completed c units and wants to execute unit
    c: it may while ``c - min(clocks) <= slack``.
    """

    slack: int

    def hold(self, view: View, member: Member) -> Waiting | None:
        slowest = view.slowest_clock()
        if member.clock - slowest <= self.slack:
            return None
        behind = tuple(m.worker for m in view.active() if m.clock == slowest)
        return Waiting(
            f"{listed(behind)} to complete clock {member.clock - self.slack} "
            f"(now at {slowest}; {member.worker} is at {member.clock}, slack {self.slack})",
            behind,
        )


def listed(workers: tuple[str, ...]) -> str:
    return ", ".join(workers) if workers else "nobody"
