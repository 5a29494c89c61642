"""Gate: may this worker start its next unit of work?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from psserver.policies.parts.view import Participant, View
from psserver.policies.policy import Waiting
from psserver.records import StateError


class Gate(Protocol):
    """Decides whether a worker may start. Derive from it to inherit the methods that your gate does not need.

    `ahead`: a worker may be granted its next ticket before it has committed the present one. `bounds_clocks`: it bounds
    how far one worker's clock is ahead of another's; clocks go on when another gate that does so takes over from it.
    """

    ahead: bool = False
    bounds_clocks: bool = False

    def completed(self, view: View, member: Participant, t: float) -> None:
        """Learn that the member has committed, `t` seconds after the job began. Its clock has advanced."""
        return

    def admits(self, view: View, member: Participant) -> bool:
        """Whether it may start now."""
        ...

    def hold(self, view: View, member: Participant) -> Waiting | None:
        """Explain why it may not start; None if it may. Not called for every event."""
        ...

    def stamp(self, view: View) -> object:
        """Return a value that changes whenever a held worker may have become free.

        While it stays equal, a step examines only the worker that has just asked, not everyone who waits. A gate that
        cannot tell returns ``object()``.
        """
        ...

    def state(self, view: View) -> dict[str, object]:
        """Return what the gate learned in `completed`, JSON-able. A stateless gate need not override it.

        Raises StateError for a gate that overrides `completed` but not this method.
        """
        if type(self).completed is not Gate.completed:
            raise StateError(
                f"the gate {type(self).__name__} remembers commits and has no state(): it cannot be saved; "
                "expected state() and restore(), see psserver.policies.parts.gates.Gate"
            )
        return {}

    def restore(self, view: View, state: Mapping[str, object]) -> None:
        """Restore what `state` returned, with the same view. Raises StateError, with nothing changed."""
        if state:
            raise StateError(f"the gate {type(self).__name__} remembers nothing, got {sorted(state)}")


class Immediate(Gate):
    """No worker ever waits."""

    ahead: bool = True

    def admits(self, view: View, member: Participant) -> bool:
        return True

    def hold(self, view: View, member: Participant) -> Waiting | None:
        return None

    def stamp(self, view: View) -> object:
        return None


class WaitForUpdate(Gate):
    """A worker that contributed to the coming update waits for it."""

    def admits(self, view: View, member: Participant) -> bool:
        return member.worker not in view.contributors()

    def hold(self, view: View, member: Participant) -> Waiting | None:
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
    bounds_clocks: bool = field(default=True, init=False, repr=False)

    def admits(self, view: View, member: Participant) -> bool:
        return member.clock - view.slowest_clock() <= self.slack

    def hold(self, view: View, member: Participant) -> Waiting | None:
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
    """Return the names for a sentence; "nobody" if there are none."""
    return ", ".join(workers) if workers else "nobody"
