"""Gate: may this worker start its next unit of work?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from psserver.policies.parts.view import Member, View
from psserver.policies.policy import Waiting
from pswire.records import StateError


class Gate(Protocol):
    """Name it as the base class: what a gate does not care about is then here already.

    `ahead`: it has nothing against granting a worker its next ticket before the present one is committed.
    """

    ahead: bool = False

    def completed(self, view: View, member: Member, t: float) -> None:
        """The member has committed, `t` seconds after the job began. Its clock counts it."""
        return

    def admits(self, view: View, member: Member) -> bool:
        """It may start."""
        ...

    def hold(self, view: View, member: Member) -> Waiting | None:
        """None: it may start. Otherwise why not, in words; not called for every event."""
        ...

    def stamp(self, view: View) -> object:
        """A value that is another one whenever a worker that was held may have become free.

        While it stays equal, only a worker that has just asked is looked at: a
        step must not cost a look at everybody who waits. A gate that cannot
        know returns ``object()``.
        """
        ...

    def state(self, view: View) -> dict[str, object]:
        """What it has learned by `completed`: JSON-able. A gate that learns nothing has nothing to write here.

        Raises StateError when it learns, and does not say what.
        """
        if type(self).completed is not Gate.completed:
            raise StateError(
                f"the gate {type(self).__name__} remembers commits and has no state(): it cannot be saved; "
                "expected state() and restore(), see psserver.policies.parts.gates.Gate"
            )
        return {}

    def restore(self, view: View, state: Mapping[str, object]) -> None:
        """Take up what `state` gave, beside the same view. Raises StateError, with nothing changed."""
        if state:
            raise StateError(f"the gate {type(self).__name__} remembers nothing, got {sorted(state)}")


class Immediate(Gate):
    """Nobody ever waits."""

    ahead: bool = True

    def admits(self, view: View, member: Member) -> bool:
        return True

    def hold(self, view: View, member: Member) -> Waiting | None:
        return None

    def stamp(self, view: View) -> object:
        return None


class WaitForUpdate(Gate):
    """A worker that contributed to the coming update waits for it."""

    def admits(self, view: View, member: Member) -> bool:
        return member.worker not in view.contributors()

    def hold(self, view: View, member: Member) -> Waiting | None:
        if self.admits(view, member):
            return None
        contributed = view.contributors()
        missing = tuple(m.worker for m in view.active() if m.worker not in contributed)
        return Waiting(f"version {view.version + 1}, which needs a commit of {listed(missing)}", missing)

    def stamp(self, view: View) -> object:
        return view.version


@dataclass(frozen=True, slots=True)
class Slack(Gate):
    """A worker runs at most `slack` clocks ahead of the slowest active one (SSP; Ho et al. 2013, §3).

    A worker whose clock is c has completed c units and wants to execute unit
    c: it may while ``c - min(clocks) <= slack``.
    """

    slack: int

    def admits(self, view: View, member: Member) -> bool:
        return member.clock - view.slowest_clock() <= self.slack

    def hold(self, view: View, member: Member) -> Waiting | None:
        if self.admits(view, member):
            return None
        slowest = view.slowest_clock()
        behind = tuple(m.worker for m in view.active() if m.clock == slowest)
        return Waiting(
            f"{listed(behind)} to complete clock {member.clock - self.slack} "
            f"(now at {slowest}; {member.worker} is at {member.clock}, slack {self.slack})",
            behind,
        )

    def stamp(self, view: View) -> object:
        return view.slowest_clock()


def listed(workers: tuple[str, ...]) -> str:
    return ", ".join(workers) if workers else "nobody"
