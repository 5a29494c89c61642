"""The generated page "The way of a gradient" against the calls of a real run."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

import psworker
from docs.generate import way
from tests.promises import promise
from tests.service.serving import serving

STEPS = 12
STOPS = [way.function(dotted).__code__ for stops in way.WAY.values() for dotted in stops]  # type: ignore[attr-defined]


@contextmanager
def traced() -> Iterator[list[Any]]:
    """Collect the code of each function that a thread which starts here calls, in order."""
    calls: list[Any] = []

    def see(frame: FrameType, what: str, _: Any) -> None:
        if what == "call":
            calls.append(frame.f_code)

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def missing(stops: Sequence[Any], calls: Sequence[Any]) -> Any:
    """The first stop that is not called behind the stops before it."""
    following = iter(calls)
    return next((stop for stop in stops if stop not in following), None)


@promise("The page 'The way of a gradient' names functions that a gradient passes, in their order.")
def test_a_gradient_goes_the_way_of_the_page() -> None:
    start = {"w": np.zeros(4, np.float32)}
    with (
        traced() as calls,
        serving() as cluster,
        psworker.connect(cluster.hosts, start, transport="socket") as session,
    ):
        for turn in session.turns(range(STEPS)):
            turn.send({"w": np.ones(4, np.float32)}, samples=1)
    sent = [number for number, code in enumerate(calls) if code is STOPS[0]]
    assert len(sent) == STEPS
    # The first steps agree on a transport, and a lease or a write of the log may disturb one.
    lost = {missing(STOPS, calls[begin:end]) for begin, end in zip(sent[3:-1], sent[4:], strict=True)}
    assert None in lost, f"not called behind the stops before: {[code.co_qualname for code in lost]}"
