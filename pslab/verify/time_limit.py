"""A policy under a time limit: a step that never ends is reported as a fault, and does not hang the search."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from psserver.policies import Decision, Event, Policy, PolicyError, Waiting

T = TypeVar("T")

# CPU seconds that one step may take. A built-in policy takes microseconds; a first step may import a library.
PATIENCE = 1.0
# The most decisions in answer to one event, more than any policy of a few workers needs.
DECISIONS_LIMIT = 10_000


class _TooLong(BaseException):
    """Not an Exception, so that a policy that catches exceptions does not catch it."""


class TimeLimitedPolicy(Policy):
    """A policy whose steps raise PolicyError when they take longer than `patience` CPU seconds.

    The limit holds only inside `timed()`. `events` counts the steps.
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

    @property
    def rests(self) -> bool:
        return self.policy.rests

    @property
    def unwrapped(self) -> Policy:
        return self.policy

    def check_succession(self, former: Policy) -> None:
        self.policy.check_succession(former.unwrapped)

    def succeed(self, former: Policy, t: float) -> None:
        self.policy.succeed(former.unwrapped, t)

    def state(self) -> Mapping[str, object]:
        return self.policy.state()

    def restore(self, state: Mapping[str, object]) -> None:
        self.policy.restore(state)

    def go_on(self, state: Mapping[str, object], version: int) -> None:
        self.policy.go_on(state, version)

    def _listed(self, event: Event) -> list[Decision]:
        decisions = self.policy.step(event)
        # The coordinator refuses anything but a list.
        if isinstance(decisions, list) and len(decisions) > DECISIONS_LIMIT:
            raise PolicyError(f"more than {DECISIONS_LIMIT} decisions in one step")
        return decisions

    def _within(self, work: Callable[[], T], what: str) -> T:
        try:
            return self._timed(work) if _armed else work()
        except SystemExit as error:
            raise PolicyError(f"{what} wants to exit: {error}") from error
        except _TooLong:
            raise PolicyError(f"{what} does not end: it was stopped after some time") from None

    def _timed(self, work: Callable[[], T]) -> T:
        signal.setitimer(signal.ITIMER_VIRTUAL, self.patience)
        try:
            return work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


_armed = False


@contextmanager
def timed() -> Iterator[None]:
    """Apply the time limit of policies. Has no effect outside the main thread, which alone receives signals."""
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
