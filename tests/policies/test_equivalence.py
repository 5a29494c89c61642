"""Policies that must coincide, run side by side. The cheapest proofs there are."""

import random
from collections.abc import Mapping

import pytest

from psserver.policies import (
    Apply,
    Cancel,
    Commit,
    Decision,
    Done,
    Drop,
    Event,
    Grant,
    Join,
    Leave,
    Ready,
    build,
)
from tests.policies.harness import PolicyHarness, start_policy

HUGE = 10**9


def events_of(name: str, knobs: Mapping[str, object], seed: int, workers: int = 4) -> list[Event]:
    """Facts of a random run under one policy: commits, departures, returns, ends."""
    dice = random.Random(seed)
    policy = build(name, knobs, workers)
    facts: list[Event] = []
    held: dict[str, int] = {}
    tickets = iter(range(1, HUGE))

    def tell(event: Event) -> None:
        facts.append(event)
        for decision in policy.step(event):
            match decision:
                case Grant(worker, ticket):
                    held[worker] = ticket
                case Cancel(_, _):
                    raise AssertionError("these policies cancel nothing")

    away = [f"w{rank}" for rank in range(workers)]
    here: list[str] = []
    for _ in range(300):
        chance = dice.random()
        if away and (chance < 0.2 or not here):
            worker = away.pop(dice.randrange(len(away)))
            here.append(worker)
            tell(Join(worker, int(worker[1:])))
            tell(Ready(worker, next(tickets)))
        elif chance < 0.25 and here:
            worker = here.pop(dice.randrange(len(here)))
            held.pop(worker, None)
            tell(Leave(worker, "killed"))
            away.append(worker)
        elif held:
            worker = dice.choice(sorted(held))
            tell(Commit(worker, held.pop(worker), 1, 0.0, 0.0))
            tell(Ready(worker, next(tickets)))
    for worker in here:
        if worker in held:
            tell(Commit(worker, held.pop(worker), 1, 0.0, 0.0))
            tell(Done(worker))
    return facts


def answers(name: str, knobs: Mapping[str, object], facts: list[Event]) -> list[list[Decision]]:
    policy = build(name, knobs, 4)
    return [policy.step(fact) for fact in facts]


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("bounded", {"aggregate": 1, "max_staleness": HUGE, "on_stale": "drop"}),
        ("bounded", {"aggregate": 1, "max_staleness": HUGE, "on_stale": "downweight"}),
        ("bounded", {"aggregate": 1, "max_staleness": HUGE, "on_stale": "compensate"}),
        ("bounded", {"aggregate": 1, "max_staleness": 0, "on_stale": "compensate", "compensation": 0.0}),
        ("bounded", {"aggregate": 1, "max_staleness": HUGE, "on_stale": "block"}),
        ("ssp", {"slack": HUGE}),
    ],
)
def test_without_a_bound_every_policy_is_async(name: str, knobs: dict[str, object]) -> None:
    """Decision for decision, on the same facts."""
    for seed in range(20):
        facts = events_of("async", {}, seed)
        assert answers(name, knobs, facts) == answers("async", {}, facts)


def test_the_ways_to_treat_the_stale_agree_while_nothing_is_stale() -> None:
    ways = ("drop", "downweight", "compensate", "block")
    for seed in range(10):
        facts = events_of("bounded", {"aggregate": 3, "max_staleness": HUGE}, seed)
        given = [
            answers("bounded", {"aggregate": 3, "max_staleness": 50, "on_stale": w}, facts) for w in ways
        ]
        assert given[1:] == given[:-1]


def lockstep(harness: PolicyHarness, rounds: int, seed: int) -> None:
    """Every worker once per round, in an order by chance."""
    dice = random.Random(seed)
    for _ in range(rounds):
        for worker in dice.sample(sorted(harness.held), len(harness.held)):
            harness.commit(worker, again=False)
        harness.ready(*(f"w{rank}" for rank in range(4)))


@pytest.mark.parametrize("seed", range(5))
def test_bounded_by_zero_with_all_k_is_sync_in_lockstep(seed: int) -> None:
    """A bound of 0 in version space with K = n is BSP."""
    sync, block = (
        start_policy("sync", workers=4),
        start_policy("bounded", workers=4, aggregate=4, max_staleness=0, on_stale="block"),
    )
    for harness in (sync, block):
        lockstep(harness, 10, seed)
    assert [set(block.authors(u)) for u in block.updates] == [set(sync.authors(u)) for u in sync.updates]
    assert [u.scale for u in block.updates] == [u.scale for u in sync.updates]
    assert (sync.version, block.version) == (10, 10)


@pytest.mark.parametrize("seed", range(5))
def test_bounded_by_zero_has_no_staleness_and_no_drops_on_any_schedule(seed: int) -> None:
    dice = random.Random(seed)
    harness = start_policy("bounded", workers=4, aggregate=4, max_staleness=0, on_stale="block")
    for _ in range(1000):
        harness.commit(dice.choice(sorted(harness.held)))
    assert set(harness.staleness) == {0}
    assert harness.dropped == {}
    assert {len(update.parts) >= 4 for update in harness.updates} == {True}


@pytest.mark.parametrize("seed", range(5))
def test_ssp_without_slack_is_a_barrier_in_clocks(seed: int) -> None:
    """SSP(0) is BSP with summed updates: n updates per clock, and nobody starts a clock before all ended the last."""
    dice = random.Random(seed)
    harness = start_policy("ssp", workers=4, slack=0)
    for _ in range(50):
        worked = []
        while harness.held:
            worker = dice.choice(sorted(harness.held))
            harness.commit(worker, again=False)
            worked.append(worker)
        assert sorted(worked) == ["w0", "w1", "w2", "w3"]
        harness.ready(*worked)
    assert harness.version == 4 * 50


def test_sync_of_one_worker_is_async_of_one_worker() -> None:
    facts: list[Event] = [Join("w0", 0)]
    for ticket in range(1, 30):
        facts += [Ready("w0", ticket), Commit("w0", ticket, 1, 0.0, 0.0)]
    sync = [d for ds in answers("sync", {}, facts) for d in ds if isinstance(d, Apply)]
    # answers() builds for four workers: one that is there alone is all that there are.
    assert sync == [d for ds in answers("async", {}, facts) for d in ds if isinstance(d, Apply)]


def test_backups_of_all_but_one_take_the_first_gradient_of_every_version() -> None:
    """N = 1 of n: K-sync with K = 1 (Dutta et al. 2018); everything that is applied is fresh."""
    dice = random.Random(3)
    harness = start_policy("sync", workers=4, backup=3)
    for _ in range(200):
        harness.commit(dice.choice(sorted(harness.held)))
        harness.ready(*(f"w{n}" for n in range(4) if f"w{n}" not in harness.held))
    assert harness.version == 200
    assert set(harness.staleness) == {0}
    assert len(harness.cancelled) == 3 * 200


def test_the_same_facts_give_the_same_decisions() -> None:
    for name, knobs in (("sync", {}), ("bounded", {"aggregate": 2, "max_staleness": 1, "on_stale": "block"})):
        facts = events_of(name, knobs, 5)
        first, second = answers(name, knobs, facts), answers(name, knobs, facts)
        assert first == second
        assert any(isinstance(d, Apply) for ds in first for d in ds)
        assert not any(isinstance(d, Drop) for ds in first for d in ds)
