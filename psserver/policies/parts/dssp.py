"""The gate of DSSP: slack that adapts while the job runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from psserver.policies.parts.gates import Gate, listed
from psserver.policies.parts.view import Participant, View
from psserver.policies.policy import Waiting
from psserver.records import StateError, from_plain, to_plain


@dataclass(slots=True)
class WorkerPace:
    """The gate's memory of one membership: times of the last two commits, and its credit."""

    member: Participant
    latest: float | None = None
    previous: float | None = None
    # Further units that the controller grants beyond the lower slack.
    credit: int = 0
    # Whether the next unit may start beyond the lower slack.
    free: bool = False

    @property
    def interval(self) -> float | None:
        """Seconds between the last two commits; None before the second."""
        if self.latest is None or self.previous is None:
            return None
        return self.latest - self.previous


@dataclass(frozen=True, slots=True)
class PaceState:
    """A `WorkerPace` with the name of its worker. Times in seconds since the job began."""

    worker: str
    latest: float | None
    previous: float | None
    credit: int
    free: bool


@dataclass(frozen=True, slots=True)
class PacesState:
    """The paces of all present members; those of former members are not saved."""

    paces: list[PaceState]


class DynamicSlack(Gate):
    """DSSP (Zhao et al. 2019, ICDCS, algorithms 1 and 2): at most `upper` clocks ahead, usually `lower`.

    When the fastest worker would block at `lower`, a controller predicts its commits and those of the slowest from the
    last two of each, and grants the number of further units that minimises its wait. The printed algorithm asks the
    controller again whenever these are used up, and so exceeds `upper` without limit. Here `upper` always holds.
    """

    bounds_clocks = True

    def __init__(self, lower: int, upper: int) -> None:
        self._lower = lower
        self._upper = upper
        self._paces: dict[str, WorkerPace] = {}

    def completed(self, view: View, member: Participant, t: float) -> None:
        pace = self._pace(member)
        pace.previous, pace.latest = pace.latest, t
        if pace.credit > 0:
            pace.credit -= 1
            pace.free = True
            return
        pace.free = False
        if member.clock - view.slowest_clock() > self._lower and member.clock >= view.fastest_clock():
            pace.credit = self._foresee(view, pace)
            pace.free = pace.credit > 0

    def admits(self, view: View, member: Participant) -> bool:
        return member.clock - view.slowest_clock() <= self._limit(member)

    def hold(self, view: View, member: Participant) -> Waiting | None:
        if self.admits(view, member):
            return None
        slowest, limit = view.slowest_clock(), self._limit(member)
        behind = tuple(m.worker for m in view.active() if m.clock == slowest)
        return Waiting(
            f"{listed(behind)} to complete clock {member.clock - limit} "
            f"(now at {slowest}; {member.worker} is at {member.clock}, slack {limit} for now)",
            behind,
        )

    def stamp(self, view: View) -> object:
        # A worker's credit changes only by its own commit, after which it asks again.
        return view.slowest_clock()

    def state(self, view: View) -> dict[str, object]:
        found = [self._paces.get(worker) for worker in view.members]
        # Skip paces without a commit, and those of a former member of the same name.
        paces = [
            PaceState(pace.member.worker, pace.latest, pace.previous, pace.credit, pace.free)
            for pace in found
            if pace is not None
            and pace.latest is not None
            and view.members[pace.member.worker] is pace.member
        ]
        plain: dict[str, object] = to_plain(PacesState(paces))
        return plain

    def restore(self, view: View, state: Mapping[str, object]) -> None:
        saved = from_plain(PacesState, state, "gate")
        unknown = [pace.worker for pace in saved.paces if pace.worker not in view.members]
        if unknown:
            raise StateError(f"gate: expected the paces of members, got those of {', '.join(unknown)}")
        self._paces = {
            pace.worker: WorkerPace(
                view.members[pace.worker], pace.latest, pace.previous, pace.credit, pace.free
            )
            for pace in saved.paces
        }

    def _limit(self, member: Participant) -> int:
        return self._upper if self._pace(member).free else self._lower

    def _pace(self, member: Participant) -> WorkerPace:
        pace = self._paces.get(member.worker)
        # A worker that left and came back is a new member: its former times do not count.
        if pace is None or pace.member is not member:
            pace = self._paces[member.worker] = WorkerPace(member)
        return pace

    def _foresee(self, view: View, fast: WorkerPace) -> int:
        """Algorithm 2: return the number of further units that minimises the fast worker's wait for the slow one."""
        active = (m for m in view.members.values() if not m.done)
        slow = self._pace(min(active, key=lambda m: (m.clock, m.rank)))
        if fast.interval is None or slow.interval is None:
            return 0
        assert fast.latest is not None and slow.latest is not None
        choices = range(self._upper - self._lower + 1)
        arrivals = [slow.latest + (k + 1) * slow.interval for k in choices]
        ends = [fast.latest + r * fast.interval for r in choices]
        return min(choices, key=lambda r: min(abs(arrival - ends[r]) for arrival in arrivals))
