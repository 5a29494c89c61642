"""Save a view as plain data and restore it. Fields that follow from others are not saved."""

from dataclasses import dataclass

from psserver.policies.parts.view import Contribution, Member, Open, View
from pswire.records import StateError, from_plain, to_plain


@dataclass(frozen=True, slots=True)
class MemberState:
    """A `Member` without the tickets that it holds."""

    worker: str
    rank: int
    clock: int
    done: bool


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


def save(view: View) -> dict[str, object]:
    """Return the view as JSON-able data."""
    members = [MemberState(m.worker, m.rank, m.clock, m.done) for m in view.members.values()]
    plain: dict[str, object] = to_plain(
        ViewState(
            view.version,
            view.peak,
            view.folded,
            members,
            list(view.open.values()),
            list(view.waiting.items()),
            view.buffer,
        )
    )
    return plain


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
        view.add_member(Member(member.worker, member.rank, member.clock, member.done))
    for opened in state.open:
        # Grant it again, in the same order and from the same version.
        view.version, view.waiting[opened.worker] = opened.base, opened.ticket
        view.grant(opened.worker)
    view.version = state.version
    view.waiting.update(state.waiting)
    for contribution in state.buffer:
        view.contribute(contribution, by_rank=False)
    view.folded, view.peak = state.folded, state.peak
    return view
