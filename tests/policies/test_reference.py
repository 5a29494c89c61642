"""The policy machine against a plain reference, on random facts that a coordinator might tell."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psserver.policies import Abandon, Cancel, Commit, Decision, Done, Event, Grant, Join, Leave, Ready, build
from tests.policies.plain import plain

SETTINGS: list[tuple[str, dict[str, object]]] = [
    ("sync", {}),
    ("sync", {"backup": 1}),
    ("sync", {"backup": 3}),
    ("async", {}),
    ("bounded", {"aggregate": 2, "max_staleness": 1}),
    ("bounded", {"aggregate": 3, "max_staleness": 0, "on_stale": "drop"}),
    ("bounded", {"aggregate": 2, "max_staleness": 0, "on_stale": "downweight"}),
    ("bounded", {"aggregate": 1, "max_staleness": 1, "on_stale": "compensate"}),
    ("bounded", {"aggregate": 1, "max_staleness": 2, "on_stale": "block"}),
    ("bounded", {"aggregate": 3, "max_staleness": 0, "on_stale": "block"}),
    ("ssp", {"slack": 0}),
    ("ssp", {"slack": 2}),
]
IDS = ["-".join([name, *(str(knob) for knob in knobs.values())]) for name, knobs in SETTINGS]


class Pair:
    """Both hear the same facts; any difference fails at once, with the facts that led to it."""

    def __init__(self, name: str, knobs: Mapping[str, object]) -> None:
        self.policy, self.reference = build(name, knobs, 4), plain(name, knobs, 4)
        self.facts: list[Event] = []
        self.held: dict[str, int] = {}
        self.asking: list[str] = []
        self.idle: list[str] = []
        self.tickets = 0

    def tell(self, event: Event) -> None:
        self.facts.append(event)
        decisions = self.policy.step(event)
        assert decisions == self.reference.step(event), self.facts
        for decision in decisions:
            self.follow(decision)
        for worker in [*self.held, *self.idle, *self.asking]:
            assert (self.policy.explain(worker) is not None) == (worker in self.asking), (worker, self.facts)

    def follow(self, decision: Decision) -> None:
        match decision:
            case Grant(worker, ticket):
                self.asking.remove(worker)
                self.held[worker] = ticket
            case Cancel(ticket, _):
                worker = next(w for w, held in self.held.items() if held == ticket)
                del self.held[worker]
                self.idle.append(worker)

    def ready(self, worker: str) -> None:
        self.idle.remove(worker)
        self.tickets += 1
        self.asking.append(worker)
        self.tell(Ready(worker, self.tickets))

    def play(self, dice: random.Random, steps: int) -> None:
        names = [f"w{rank}" for rank in range(5)]
        for _ in range(steps):
            worker, move = names[dice.randrange(5)], dice.randrange(12)
            if worker not in self.reference.rank:
                # Ranks need not be those of the names, nor come in order.
                free = [rank for rank in range(5) if rank not in self.reference.rank.values()]
                self.idle.append(worker)
                self.tell(Join(worker, free[dice.randrange(len(free))]))
            elif worker in self.held and move >= 2:
                ticket = self.held.pop(worker)
                self.idle.append(worker)
                self.tell(Commit(worker, ticket, 1, 0.0, 0.0))
            elif worker in self.held and move == 1:
                ticket = self.held.pop(worker)
                self.idle.append(worker)
                self.tell(Abandon(worker, ticket, "test"))
            elif worker in self.idle and move >= 2:
                self.ready(worker)
            elif worker in self.idle and move == 1 and worker not in self.reference.done:
                self.idle.remove(worker)
                self.tell(Done(worker))
            elif move == 0:
                for where in (self.idle, self.asking):
                    if worker in where:
                        where.remove(worker)
                self.held.pop(worker, None)
                self.tell(Leave(worker, "killed"))


@pytest.mark.parametrize(("name", "knobs"), SETTINGS, ids=IDS)
def test_same_facts_same_decisions(name: str, knobs: dict[str, object]) -> None:
    for seed in range(60):
        pair = Pair(name, knobs)
        pair.play(random.Random(seed), 120)
        assert pair.reference.version > 0


@given(setting=st.sampled_from(SETTINGS), dice=st.randoms(use_true_random=False))
def test_same_facts_same_decisions_shrunk(
    setting: tuple[str, dict[str, object]], dice: random.Random
) -> None:
    Pair(*setting).play(dice, 40)
