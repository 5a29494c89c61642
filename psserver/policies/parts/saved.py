"""Save a view as plain data and restore it. Fields that follow from others are not saved."""

from collections import deque
from dataclasses import dataclass

from psserver.policies.parts.times import WINDOW, Pace, Times
from psserver.policies.parts.view import Contribution, Open, Participant, View
from pswire.records import StateError, from_plain, to_plain


@dataclass(frozen=True, slots=True)
class MemberState:
    """A `Participant` without the tickets that it holds."""

    worker: str
    rank: int
    clock: int
    done: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class TimesState:
    """A `Times`."""

    began: int | None
    first: int | None
    durations: list[int | None]
    # (worker, mean, mean deviation)
    paces: list[tuple[str, float, float]]
    chosen: int | None
    count: int
    ranks: list[float]
    complete: int


@dataclass(frozen=True, slots=True)
class ViewState:
    """A `View`. Lists keep the order of its dicts, which is that of the events."""

    version: int
    peak: int
    folded: int
    members: list[MemberState]
    open: list[Open]
    waiting: list[tuple[str, int]]
    buffer: list[Contribution]
    # None under a policy that needs no times.
    times: TimesState | None
    left_at: list[tuple[str, int]]
    floor: int
    missed: list[tuple[str, int]]
    credit: float | None


def save(view: View) -> dict[str, object]:
    """Return the view as JSON-able data."""
    members = [MemberState(m.worker, m.rank, m.clock, m.done, m.granted) for m in view.members.values()]
    plain: dict[str, object] = to_plain(
        ViewState(
            view.version,
            view.peak,
            view.folded,
            members,
            list(view.open.values()),
            list(view.waiting.items()),
            view.buffer,
            None if view.times is None else _times(view.times),
            list(view.left_at.items()),
            view.floor,
            list(view.missed.items()),
            view.credit,
        )
    )
    return plain


def _times(times: Times) -> TimesState:
    paces = [(worker, pace.mean, pace.deviation) for worker, pace in times.paces.items()]
    return TimesState(
        times.began,
        times.first,
        list(times.durations),
        paces,
        times.chosen,
        times.count,
        list(times.ranks),
        times.complete,
    )


def restored(data: object) -> View:
    """Return the saved view. Raises StateError for inconsistent data."""
    state = from_plain(ViewState, data, "view")
    names = {member.worker for member in state.members}
    for holds, what in (
        (len(names) == len(state.members), "two members have one name"),
        (names >= {opened.worker for opened in state.open}, "an open ticket is held by no member"),
        (names >= {worker for worker, _ in state.waiting}, "a waiting worker is not a member"),
        (
            all(opened.base <= state.version for opened in state.open),
            "a ticket started from a future version",
        ),
        (0 <= state.folded <= len(state.buffer), "more contributions are folded than are in the buffer"),
    ):
        if not holds:
            raise StateError(f"view: {what}")
    view = View()
    for member in state.members:
        view.add_member(Participant(member.worker, member.rank, member.clock, member.done, member.granted))
    saved = state.times
    if saved is not None:
        paces = {worker: Pace(mean, deviation) for worker, mean, deviation in saved.paces}
        durations = deque(saved.durations, maxlen=WINDOW)
        view.times = Times(
            0,
            saved.began,
            saved.first,
            durations,
            paces,
            saved.chosen,
            saved.count,
            list(saved.ranks),
            saved.complete,
        )
    for opened in state.open:
        # Grant it again, in the same order, at the same time and from the same version.
        if view.times is not None:
            view.times.now = opened.at
        view.version, view.waiting[opened.worker] = opened.base, opened.ticket
        view.grant(opened.worker)
    view.version = state.version
    view.waiting.update(state.waiting)
    for contribution in state.buffer:
        view.contribute(contribution, by_rank=False)
    view.folded, view.peak = state.folded, state.peak
    view.left_at, view.floor = dict(state.left_at), state.floor
    view.missed, view.credit = dict(state.missed), state.credit
    return view
