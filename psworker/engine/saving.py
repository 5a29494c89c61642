"""A client engine saved as a value, and made of it again: what a checker compares, or a process could keep."""

from pswire.protocol import Cancel
from psworker.engine.client import ClientEngine
from psworker.engine.position import Position
from psworker.engine.state import EngineState


def state_of(engine: ClientEngine) -> EngineState:
    """All that the engine remembers."""
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
    )


def restored(state: EngineState, shift: float = 0.0) -> ClientEngine:
    """An engine that goes on as the one whose `state` it is would have.

    `shift` is added to every time: the new process's clock minus that of the one which saved it, in seconds.
    Raises StateError for a state whose parts contradict each other.
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
    engine.position = Position(state.position, state.position_before)
    engine.forfeited, engine.rolled_back = state.forfeited, state.rolled_back
    return engine
