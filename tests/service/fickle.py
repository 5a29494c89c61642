"""A policy that takes grants back before anybody can have begun on them."""

from psserver.policies import Apply, Cancel, Commit, Decision, Event, Grant, Part, Policy, Ready, Waiting

EVERY = 4


class Fickle(Policy):
    """Async, but each ticket whose number is a multiple of `EVERY` is cancelled in the moment of its grant."""

    def __init__(self, *, workers: int) -> None:
        pass

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket):
                taken_back = [Cancel(ticket, "on second thoughts")] if ticket % EVERY == 0 else []
                return [Grant(worker, ticket), *taken_back]
            case Commit(_, ticket):
                return [Apply((Part(ticket),))]
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None
