"""An engine that is saved, and restored in the middle of whatever happens, goes on as the first one does."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.records import StateError
from psworker.engine import (
    Cancel,
    ClientEngine,
    Commit,
    Disposition,
    EngineState,
    Grant,
    Refusal,
    Stop,
    Times,
)
from psworker.engine.state import restored, state_of
from psworker.errors import SessionError
from tests.repetitions import repetitions

TICKETS = st.integers(1, 6)
COMMITS = st.builds(
    Commit,
    TICKETS,
    batch=st.integers(0, 9),
    samples=st.integers(0, 9),
    loss=st.floats(-1, 1),
    ready=st.booleans(),
    times=st.none() | st.builds(Times, st.floats(0, 1), st.floats(0, 1), st.none() | st.floats(0, 1)),
    receipts=st.lists(st.binary(max_size=4), max_size=2).map(tuple),
)
REASONS = st.sampled_from(["overtaken", "lost"])
EVENTS = st.one_of(
    st.builds(
        Grant, TICKETS, version=st.integers(0, 3), index=st.integers(0, 9), received_at=st.floats(0, 9)
    ),
    st.builds(Cancel, TICKETS, REASONS),
    st.builds(Disposition, TICKETS, st.sampled_from(["applied", "dropped", "pending"])),
)
LAST = st.one_of(
    st.builds(Stop, REASONS, st.integers(0, 9), st.booleans(), st.integers(0, 9), st.booleans()),
    st.builds(Refusal, REASONS, st.booleans(), TICKETS),
)
# (method, its arguments); legal or not.
INPUTS = st.one_of(
    st.tuples(st.sampled_from(["ready", "take_grant", "owed", "dispositions", "done"])),
    st.tuples(st.sampled_from(["begin_commit", "commit"]), COMMITS),
    st.tuples(st.sampled_from(["ready_ahead", "rollback_commit", "after"]), TICKETS),
    st.tuples(st.just("abandon"), TICKETS, REASONS),
    st.tuples(st.just("receive"), EVENTS),
    # So that many inputs are legal: what is in hand is committed or abandoned, and the next one taken.
    st.tuples(st.sampled_from(["commit held", "abandon held", "next"])),
)
RARE = st.one_of(st.tuples(st.sampled_from(["renew", "leave"]), REASONS), st.tuples(st.just("receive"), LAST))
SAVE = st.just(("save",))
STEPS = st.lists(
    st.integers(0, 9).flatmap(lambda n: SAVE if n < 2 else RARE if n == 2 else INPUTS), max_size=60
)


def feed(engine: ClientEngine, name: str, *arguments: Any) -> Any:
    """What came of the input: its outputs, or its error."""
    try:
        match name:
            case "commit held":
                return engine.commit(Commit(engine.held or 0, loss=0.5, ready=True))
            case "abandon held":
                return engine.abandon(engine.held or 0, "no use for it")
            case "next":
                newest = state_of(engine).newest
                ticket = newest.ticket + 1 if newest else 1
                return engine.ready(), engine.receive(Grant(ticket, 0, ticket)), engine.take_grant()
            case _:
                return getattr(engine, name)(*arguments)
    except SessionError as error:
        return type(error), str(error)


@settings(max_examples=repetitions(300, soak=5000), deadline=None)
@given(steps=STEPS, lossless=st.booleans())
def test_the_restored_engine_goes_on_with_equal_outputs(steps: list[tuple[Any, ...]], lossless: bool) -> None:
    first, second = (ClientEngine(lossless_link=lossless) for _ in range(2))
    for step in steps:
        if step == ("save",):
            text = json.dumps(state_of(second).to_json(), allow_nan=False)
            second = restored(EngineState.from_json(json.loads(text)))
        else:
            assert feed(first, *step) == feed(second, *step), step
            assert (first.work, first.answered) == (second.work, second.answered)
        assert state_of(first) == state_of(second)


def test_a_state_is_not_touched_by_what_follows() -> None:
    engine = ClientEngine()
    engine.ready()
    engine.receive(Grant(1, 0, 5))
    kept = state_of(engine)
    engine.take_grant()
    engine.commit(Commit(1))
    again = restored(kept)
    assert again.work == "granted" and state_of(again) == kept
    again.take_grant()
    assert engine.work == "idle" and again.work == "working"


def saved() -> dict[str, Any]:
    """Through text: ticket 2 is in hand, 3 is granted ahead, 1 has no answer."""
    engine = ClientEngine()
    for ticket in (1, 2):
        engine.receive(Grant(ticket, 0, 5, received_at=1.5))
        engine.take_grant()
        if ticket == 1:
            engine.commit(Commit(1, loss=math.nan, times=Times(0.1, 0.2), receipts=(b"\x00\xff",)))
    engine.receive(Grant(3, 0, 6, received_at=2.5))
    found: dict[str, Any] = json.loads(json.dumps(state_of(engine).to_json(), allow_nan=False))
    return found


def test_a_state_comes_back_through_text() -> None:
    state = EngineState.from_json(saved())
    (commit,) = state.unanswered
    assert (commit.receipts, commit.times) == ((b"\x00\xff",), Times(0.1, 0.2))
    assert math.isnan(commit.loss)
    assert restored(state).work == "working"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.clear(), "engine state: expected the fields .* no 'lossless_link'"),
        (lambda s: s.update(more=1), "engine state: .* got unknown 'more'"),
        (lambda s: s.update(held="five"), "engine state.held: expected a whole number, got 'five'"),
        (
            lambda s: s["grants"][0].update(index=None),
            r"grants\[0\].index: expected a whole number, got None",
        ),
        (
            lambda s: s["unanswered"][0].update(times=[1.0]),
            r"unanswered\[0\].times: expected 3 values, got 1",
        ),
        (
            lambda s: s["unanswered"][0].update(receipts=["x"]),
            "expected bytes as hexadecimal digits, got 'x'",
        ),
        (lambda s: s["unanswered"][0].update(receipts=[7]), "expected bytes as hexadecimal digits, got 7"),
        (lambda s: s.update(exchanged=2), "one ticket is in hand and one in an exchange"),
        (lambda s: s.update(newest=None), "a grant is newer than the newest"),
        (lambda s: s.update(awaited=[]), "a commit without an answer has no fate to wait for"),
    ],
)
def test_a_state_that_does_not_fit(change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    state = saved()
    change(state)
    with pytest.raises(StateError, match=sentence):
        restored(EngineState.from_json(state))


def test_another_process_has_another_clock() -> None:
    state = state_of(restored(EngineState.from_json(saved()), shift=100.0))
    assert state.newest is not None
    assert [state.newest.received_at, *(grant.received_at for grant in state.grants)] == [102.5, 102.5]
