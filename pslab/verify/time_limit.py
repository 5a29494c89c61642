"""A policy under a time limit: a step that never ends is a fault like others, not the end of the search."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from psserver.policies import Decision, Event, Policy, PolicyError, Waiting

T = TypeVar("T")

# CPU seconds that one step may take. A step of a built-in policy takes microseconds; a first one may import a library.
PATIENCE = 1.0
# More decisions in answer to one event than any policy of so few workers has reason for.
MOST = 10_000


class _TooLong(BaseException):
    """Not an Exception: a policy that catches those must not catch this."""


class TimeLimitedPolicy(Policy):
    """The policy itself, but that a step which takes longer than `patience` CPU seconds raises PolicyError.

    The limit holds inside of `timed()` only. `events` counts those it was asked about.
    """

    def __init__(self, policy: Policy, patience: float = PATIENCE) -> None:
        self.policy, self.patience = policy, patience
        self.events = 0
        self.name, self.knobs, self.ahead = policy.name, policy.knobs, policy.ahead
        self.tensors, self.local_rule = policy.tensors, policy.local_rule

    def step(self, event: Event) -> list[Decision]:
        self.events += 1
        return self._within(lambda: self._listed(event), "step")

    def explain(self, worker: str) -> Waiting | None:
        return self._within(lambda: self.policy.explain(worker), "explain")

    def state(self) -> Mapping[str, object]:
        return self.policy.state()

    def restore(self, state: Mapping[str, object]) -> None:
        self.policy.restore(state)

    def _listed(self, event: Event) -> list[Decision]:
        decisions = self.policy.step(event)
        # What is no list the coordinator refuses; it does not begin to look into it.
        if isinstance(decisions, list) and len(decisions) > MOST:
            raise PolicyError(f"more than {MOST} decisions in one step")
        return decisions

    def _within(self, work: Callable[[], T], what: str) -> T:
        try:
            return self._timed(work) if _armed else work()
        except SystemExit as error:
            raise PolicyError(f"{what} wants to exit: {error}") from error
        except _TooLong:
            raise PolicyError(f"{what} does not end: it was given up after some time") from None

    def _timed(self, work: Callable[[], T]) -> T:
        signal.setitimer(signal.ITIMER_VIRTUAL, self.patience)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


_armed = False


@contextmanager
def timed() -> Iterator[None]:
    """Policies have a time limit in here. Without effect off the main thread, which alone hears signals."""
    global _armed
    if _armed or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _give_up)
    _armed = True
    try:
        yield
    finally:
        _armed = False
        signal.signal(signal.SIGVTALRM, before)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _TooLong
