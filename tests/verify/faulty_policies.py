"""Policies with one fault each, of the kind that passes a first look."""

import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from psserver.policies import (
    Abandon,
    Apply,
    Cancel,
    Commit,
    Decision,
    Done,
    Drop,
    Event,
    Fold,
    Grant,
    Leave,
    Part,
    Policy,
    Ready,
    Waiting,
    build,
)
from psserver.records import StateError


class Wrapped(Policy):
    """A built-in policy; what it decides is for others to break."""

    named = "async"

    def __init__(self, *, workers: int) -> None:
        self.inner = build(self.named, {}, workers)
        self.name = type(self).__name__
        self.knobs: dict[str, object] = {}
        self.tensors = self.inner.tensors

    def step(self, event: Event) -> list[Decision]:
        return self.inner.step(event)

    def explain(self, worker: str) -> Waiting | None:
        return self.inner.explain(worker)


class DeadlocksOnLeave(Wrapped):
    """Its barrier goes on waiting for those that are gone."""

    named = "sync"

    def step(self, event: Event) -> list[Decision]:
        return [] if isinstance(event, Leave) else super().step(event)


class AppliesTwice(Wrapped):
    """Remembers a worker's contribution, and applies it once more when that worker is done."""

    def __init__(self, *, workers: int) -> None:
        super().__init__(workers=workers)
        self.last: dict[str, int] = {}

    def step(self, event: Event) -> list[Decision]:
        decisions = super().step(event)
        if isinstance(event, Commit):
            self.last[event.worker] = event.ticket
        if isinstance(event, Done) and event.worker in self.last:
            decisions.append(Apply((Part(self.last[event.worker]),)))
        return decisions


class Forgets(Wrapped):
    """A contribution whose loss is not a number is neither applied nor dropped."""

    def step(self, event: Event) -> list[Decision]:
        decisions = super().step(event)
        lost = isinstance(event, Commit) and event.loss != event.loss
        return [d for d in decisions if not (lost and isinstance(d, Apply))]


class GrantsTwice(Wrapped):
    """Grants again what was abandoned."""

    def step(self, event: Event) -> list[Decision]:
        decisions = super().step(event)
        if isinstance(event, Abandon):
            decisions.append(Grant(event.worker, event.ticket))
        return decisions


class RaisesOnDone(Wrapped):
    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Done):
            raise KeyError(event.worker)
        return super().step(event)


class FoldsInAnotherOrder(Wrapped):
    """Sums as they come, and applies in the order of tickets."""

    named = "k-batch-async"

    def step(self, event: Event) -> list[Decision]:
        return [self.sorted(d) if isinstance(d, Apply) else d for d in super().step(event)]

    def sorted(self, apply: Apply) -> Apply:
        return replace(apply, parts=tuple(sorted(apply.parts, key=lambda part: part.ticket)))


class Exits(Wrapped):
    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Leave):
            sys.exit(0)
        return super().step(event)


class Loops(Wrapped):
    """Tries again whatever happens, for ever."""

    def step(self, event: Event) -> list[Decision]:
        while isinstance(event, Leave):
            with suppress(Exception):
                self.explain(event.worker)
        return super().step(event)


class RaisesOnLeave(Wrapped):
    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Leave):
            raise KeyError(event.worker)
        return super().step(event)


class LoopsInExplain(Wrapped):
    named = "sync"

    def explain(self, worker: str) -> Waiting | None:
        while True:
            pass


class ExitsInExplain(Wrapped):
    named = "sync"

    def explain(self, worker: str) -> Waiting | None:
        sys.exit(0)


class CountsOnSamples(Wrapped):
    """Divides by what may be nothing."""

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Commit):
            1 / event.samples
        return super().step(event)


class Throws(Wrapped):
    """Throws dice."""

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Commit) and random.random() < 0.5:
            self.inner.step(event)
            return [Drop(event.ticket, "unlucky")]
        return super().step(event)


class TakesBack(Wrapped):
    """Cancels what it grants, and so never gets anywhere."""

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Ready):
            return [Grant(event.worker, event.ticket), Cancel(event.ticket, "no")]
        return super().step(event)


class HoldsTurns(Wrapped):
    """Gives turns of summation, and sums nothing before all are in: the shards would have to hold every payload."""

    named = "sync"

    def step(self, event: Event) -> list[Decision]:
        return [d for d in super().step(event) if not isinstance(d, Fold)]


class Unexplained(Wrapped):
    named = "sync"

    def explain(self, worker: str) -> Waiting | None:
        return None


class Endless(Wrapped):
    """Goes on deciding."""

    def step(self, event: Event) -> list[Decision]:
        decisions = super().step(event)
        return decisions + [Drop(0, "")] * 20_000 if isinstance(event, Leave) else decisions


class RaisesOnNorm(Wrapped):
    """Knows gradients of norm 1 only."""

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Commit) and event.norm > 1e6:
            raise OverflowError("the norm is too large")
        return super().step(event)


class RaisesWithoutNorm(Wrapped):
    """Counts on a norm, which not every commit has."""

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Commit):
            int(event.norm)
        return super().step(event)


class LosesItsState(Wrapped):
    """Saves nothing, and says that it can be saved."""

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        pass


class RefusesItsState(Wrapped):
    """Saves what it does not take up again."""

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        raise StateError("expected something")


class NoKnobs(Wrapped):
    def __init__(self, *, workers: int) -> None:
        super().__init__(workers=workers)
        self.knobs = {"chosen": {1, 2}}
