"""Policies that break the contract, each in one way. The base class keeps it."""

from psserver.policies import (
    Apply,
    Cancel,
    Commit,
    Decision,
    Drop,
    Event,
    Fold,
    Grant,
    Join,
    Part,
    Policy,
    Ready,
    Stop,
    TensorParts,
    Waiting,
)


class Honest(Policy):
    """Applies every gradient as it comes. What it does after the second commit is for others to break."""

    tensors = TensorParts()

    def __init__(self, *, workers: int) -> None:
        self.name = type(self).__name__
        self.knobs: dict[str, object] = {}
        self.commits = 0

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket):
                return [Grant(worker, ticket)]
            case Commit(_, ticket):
                self.commits += 1
                return self.second(ticket) if self.commits == 2 else [Apply((Part(ticket),))]
        return []

    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),))]

    def explain(self, worker: str) -> Waiting | None:
        return None


class GrantsUnknown(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),)), Grant("w0", 999)]


class GrantsToNobody(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),)), Grant("nobody", 1)]


class GrantsTwice(Honest):
    def step(self, event: Event) -> list[Decision]:
        return super().step(event) * (2 if isinstance(event, Ready) else 1)


class AppliesTwice(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),)), Apply((Part(ticket),))]


class AppliesTwiceAtOnce(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket), Part(ticket)))]


class AppliesNothing(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply(())]


class AppliesUnknown(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket), Part(999)))]


class AppliesOpen(Honest):
    """The other worker's ticket, which is still being computed."""

    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket + 1),))]


class AppliesAgainstItsFold(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Fold(ticket, 1.0), Apply((Part(ticket, 2.0),))]


class ForgetsItsFold(Honest):
    def __init__(self, *, workers: int) -> None:
        super().__init__(workers=workers)
        self.folded = 0

    def step(self, event: Event) -> list[Decision]:
        if isinstance(event, Commit) and self.commits == 2:
            self.commits += 1
            return [Apply((Part(event.ticket),))]
        return super().step(event)

    def second(self, ticket: int) -> list[Decision]:
        return [Fold(ticket)]


class FoldsTwice(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Fold(ticket), Fold(ticket)]


class FoldsUnknown(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Fold(999)]


class DropsFolded(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Fold(ticket), Drop(ticket, "test")]


class DropsTwice(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Drop(ticket, "test"), Drop(ticket, "test")]


class CancelsCommitted(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Cancel(ticket, "test")]


class WeighsNaN(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket, float("nan")),))]


class ScalesToInfinity(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),), scale=float("inf"))]


class CompensatesWithoutBases(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket, 1.0, 0.04),))]


class FoldsForAList(Honest):
    tensors = TensorParts(aggregator="median", knobs={"fewest": 1})

    def second(self, ticket: int) -> list[Decision]:
        return [Fold(ticket)]


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


class AppliesNumbers(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((ticket,))]  # type: ignore[arg-type]


class AppliesOne(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply(Part(ticket))]  # type: ignore[arg-type]


class WeighsWords(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket, "much"),))]  # type: ignore[arg-type]


class ScalesByNothing(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),), scale=None)]  # type: ignore[arg-type]


class ScalesBack(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),), lr_scale=-1)]


class ScalesBeyondFloat32(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket, 1e30),), scale=1e30)]


class WeighsBeyondDoubles(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket, 10**400),))]


class TurnsToWords(Honest):
    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket) if self.commits == 1:
                return [Grant(worker, ticket, turn="first")]  # type: ignore[arg-type]
        return super().step(event)


class DropsForNumbers(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return [Drop(ticket, 404)]  # type: ignore[arg-type]


class AnswersATuple(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return (Apply((Part(ticket),)),)  # type: ignore[return-value]


class Raises(Honest):
    def second(self, ticket: int) -> list[Decision]:
        raise ZeroDivisionError("by whatever")


class DecidesNonsense(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return ["apply it"]  # type: ignore[list-item]


class AnswersNothing(Honest):
    def second(self, ticket: int) -> list[Decision]:
        return None  # type: ignore[return-value]


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


class StopsItself(Honest):
    """Allowed: a policy may end the job."""

    def second(self, ticket: int) -> list[Decision]:
        return [Apply((Part(ticket),)), Stop("it is good enough")]
