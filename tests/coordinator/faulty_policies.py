"""Policies that break the contract, each in one way. The base class keeps it."""

from collections.abc import Callable
from typing import Any

from psserver.policies import (
    Apply,
    Commit,
    Decision,
    Event,
    Fold,
    Grant,
    Join,
    Part,
    Policy,
    Ready,
    TensorParts,
    Waiting,
)

# What a policy decides about a ticket that was committed.
Second = Callable[[int], Any]


def applied(ticket: int) -> list[Decision]:
    return [Apply((Part(ticket),))]


class Honest(Policy):
    """Applies every gradient as it comes, but for the second one, of which `second` decides."""

    tensors = TensorParts()

    def __init__(self, *, workers: int, second: Second = applied) -> None:
        self.name = type(self).__name__
        self.knobs: dict[str, object] = {}
        self.commits = 0
        self.second = second

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket):
                return [Grant(worker, ticket)]
            case Commit(_, ticket):
                self.commits += 1
                decisions: list[Decision] = self.second(ticket) if self.commits == 2 else applied(ticket)
                return decisions
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None


class GrantsTwice(Honest):
    def step(self, event: Event) -> list[Decision]:
        return super().step(event) * (2 if isinstance(event, Ready) else 1)


class ListsTwoOfOne(Honest):
    """Three contributions, but two of them are w0's."""

    tensors = TensorParts(aggregator="krum", knobs={"byzantine": 0, "select": 1})

    def __init__(self, *, workers: int) -> None:
        super().__init__(workers=workers)
        self.kept: list[int] = []

    def step(self, event: Event) -> list[Decision]:
        if not isinstance(event, Commit):
            return super().step(event)
        self.kept.append(event.ticket)
        return [Apply(tuple(Part(ticket) for ticket in self.kept))] if len(self.kept) == 3 else []


class FoldsForAList(Honest):
    tensors = TensorParts(aggregator="median", knobs={"fewest": 1})

    def __init__(self, *, workers: int) -> None:
        super().__init__(workers=workers, second=lambda ticket: [Fold(ticket)])


class TurnsToWords(Honest):
    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket) if self.commits == 1:
                return [Grant(worker, ticket, turn="first")]  # type: ignore[arg-type]
        return super().step(event)


class NeverGrants(Honest):
    """Everybody waits for ever."""

    def step(self, event: Event) -> list[Decision]:
        return [] if isinstance(event, Ready) else super().step(event)


class ExplainsBadly(Honest):
    """Holds w1 back, and cannot say why."""

    def step(self, event: Event) -> list[Decision]:
        held = isinstance(event, Ready) and event.worker == "w1"
        return [] if held or isinstance(event, Join) else super().step(event)

    def explain(self, worker: str) -> Waiting | None:
        raise KeyError(worker)
