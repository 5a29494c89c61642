"""The state of a client engine as a plain, comparable value that JSON can hold, and the engine made from it again."""

from dataclasses import dataclass, replace

from pswire.protocol import Abandon, Cancel, Commit, Disposition, Grant, Leave, Refusal, Stop
from pswire.records import StateError, from_plain, to_plain
from psworker.engine.client import ClientEngine
from psworker.engine.pending import Position


@dataclass(frozen=True, slots=True)
class EngineState:
    """See the fields of the same names in `ClientEngine`, and of `Pending`. `void`: cancelled tickets, with reasons.

    Times (`Grant.received_at`) are seconds on the clock of the process that saved the state.
    """

    lossless_link: bool
    stop: Stop | None
    refusal: Refusal | None
    leaving: Leave | None
    asked: bool
    exhausted: bool
    ends: str
    held: int | None
    exchanged: int | None
    newest: Grant | None
    grants: tuple[Grant, ...]
    unanswered: tuple[Commit, ...]
    awaited: tuple[int, ...]
    abandoned: tuple[Abandon, ...]
    void: tuple[Cancel, ...]
    dispositions: tuple[Disposition, ...]
    position: int = 0
    position_before: int = 0
    forfeited: int | None = None
    rolled_back: bool = False
    dropped: int = 0

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps(..., allow_nan=False)`."""
        plain: dict[str, object] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object) -> "EngineState":
        """Read the state. Raises StateError for missing or unknown fields and for values of another type."""
        return from_plain(cls, data, "engine state")

    def shifted(self, seconds: float) -> "EngineState":
        """Return the state with all times moved by `seconds`."""
        if not seconds:
            return self
        newest = None if self.newest is None else _later(self.newest, seconds)
        return replace(self, newest=newest, grants=tuple(_later(grant, seconds) for grant in self.grants))

    def check(self) -> None:
        """Raise StateError if fields contradict each other."""
        newest = 0 if self.newest is None else self.newest.ticket
        for holds, what in (
            (self.held is None or self.exchanged is None, "one ticket is in hand and one in an exchange"),
            (all(grant.ticket <= newest for grant in self.grants), "a grant is newer than the newest"),
            (
                {commit.ticket for commit in self.unanswered} <= set(self.awaited),
                "a commit without an answer has no fate to wait for",
            ),
        ):
            if not holds:
                raise StateError(f"engine state: {what}")


def _later(grant: Grant, seconds: float) -> Grant:
    return replace(grant, received_at=grant.received_at + seconds)


def state_of(engine: ClientEngine) -> EngineState:
    """Return the engine's state."""
    pending = engine.pending
    return EngineState(
        lossless_link=engine.lossless_link,
        stop=engine.stop,
        refusal=engine.refusal,
        leaving=engine.leaving,
        asked=engine.asked,
        exhausted=engine.exhausted,
        ends=engine.ends,
        held=engine.held,
        exchanged=engine.exchanged,
        newest=engine.newest,
        grants=tuple(engine.grants),
        unanswered=tuple(pending.commits.values()),
        awaited=tuple(pending.awaited),
        abandoned=tuple(pending.abandons.values()),
        void=tuple(Cancel(ticket, reason) for ticket, reason in engine.void.items()),
        dispositions=tuple(pending.dispositions),
        position=engine.position.next,
        position_before=engine.position.before,
        forfeited=engine.forfeited,
        rolled_back=engine.rolled_back,
        dropped=pending.dropped,
    )


def restored(state: EngineState, shift: float = 0.0) -> ClientEngine:
    """Return an engine that behaves from now on as the saved one would have.

    `shift` (seconds) is added to every time: the new process's clock minus the clock of the process that saved it.
    Raises StateError if fields contradict each other.
    """
    state.check()
    state = state.shifted(shift)
    engine = ClientEngine(lossless_link=state.lossless_link)
    engine.stop, engine.refusal, engine.leaving = state.stop, state.refusal, state.leaving
    engine.asked, engine.exhausted, engine.held = state.asked, state.exhausted, state.held
    engine.ends, engine.exchanged, engine.newest = state.ends, state.exchanged, state.newest
    engine.grants.extend(state.grants)
    pending = engine.pending
    pending.commits.update((commit.ticket, commit) for commit in state.unanswered)
    pending.awaited.update(dict.fromkeys(state.awaited))
    pending.abandons.update((each.ticket, each) for each in state.abandoned)
    engine.void.update((each.ticket, each.reason) for each in state.void)
    pending.dispositions.extend(state.dispositions)
    pending.dropped = state.dropped
    engine.position = Position(state.position, state.position_before)
    engine.forfeited, engine.rolled_back = state.forfeited, state.rolled_back
    return engine
