"""Policies that must coincide at the ends of their knobs: the cheapest proofs there are.

Each pair hears the same random facts, with departures, returns and ends, and is compared decision by
decision. Where the papers claim the identity it is named; the others follow from the rules.
"""

import random

import pytest

from psserver.policies import Apply, Decision, Fold
from tests.papers.race import Race
from tests.papers.side_by_side import WORKERS, Named, Pair
from tests.policies.harness import start_policy

HUGE = 10**9
ALL = WORKERS

SAME: list[tuple[str, Named, Named]] = [
    ("Ringmaster without a threshold is async", ("ringmaster", {"threshold": HUGE}), ("async", {})),
    (
        "with stops as well",
        ("ringmaster", {"threshold": HUGE, "stops": True}),
        ("async", {}),
    ),
    (
        "FedBuff with K = 1 and constant weights is async",
        ("fedbuff", {"aggregate": 1, "weight": "const"}),
        ("async", {}),
    ),
    ("and with a sum of one", ("fedbuff", {"aggregate": 1, "weight": "const", "norm": "sum"}), ("async", {})),
    ("K-batch-async with K = 1 is async", ("k-batch-async", {"aggregate": 1}), ("async", {})),
    ("K-async with K = 1 is async", ("k-async", {"aggregate": 1}), ("async", {})),
    ("delay-adaptive with a large M is async", ("delay-adaptive", {"concurrency": HUGE}), ("async", {})),
    ("DC-ASGD with lambda = 0 is async", ("dc-asgd", {"compensation": 0.0}), ("async", {})),
    ("DC-ASGD-a with lambda_0 = 0 is async", ("dc-asgd-a", {"compensation": 0.0}), ("async", {})),
    ("DSSP without a lower bound is async", ("dssp", {"lower": HUGE, "upper": HUGE}), ("async", {})),
    ("DSSP with equal bounds is SSP", ("dssp", {"lower": 1, "upper": 1}), ("ssp", {"slack": 1})),
    (
        "literal or not",
        ("dssp", {"lower": 2, "upper": 2, "literal": True}),
        ("ssp", {"slack": 2}),
    ),
    (
        "FedBuff with constant weights is K-batch-async",
        ("fedbuff", {"aggregate": 3, "weight": "const"}),
        ("k-batch-async", {"aggregate": 3}),
    ),
    (
        "bounded without a bound is K-batch-async",
        ("bounded", {"aggregate": 3, "max_staleness": HUGE}),
        ("k-batch-async", {"aggregate": 3}),
    ),
    (
        "bounded with a bound of 0 is Rennala",
        ("bounded", {"aggregate": 3, "max_staleness": 0}),
        ("rennala", {"aggregate": 3}),
    ),
    (
        "bounded with K = 1 is Ringmaster",
        ("bounded", {"aggregate": 1, "max_staleness": 2}),
        ("ringmaster", {"threshold": 3}),
    ),
    (
        "Rennala with K = 1 is Ringmaster with R = 1",
        ("rennala", {"aggregate": 1}),
        ("ringmaster", {"threshold": 1}),
    ),
    (
        "K-batch-sync with K = 1 is Ringmaster with R = 1 and stops",
        ("k-batch-sync", {"aggregate": 1}),
        ("ringmaster", {"threshold": 1, "stops": True}),
    ),
    (
        "K-batch-sync with K = 1 is K-sync with K = 1",
        ("k-batch-sync", {"aggregate": 1}),
        ("k-sync", {"aggregate": 1}),
    ),
    ("K-sync is sync with P - K backups", ("k-sync", {"aggregate": 3}), ("sync", {"backup": ALL - 3})),
    (
        "bounded that compensates from 0 on is DC-ASGD",
        ("bounded", {"aggregate": 1, "max_staleness": 0, "on_stale": "compensate"}),
        ("dc-asgd", {}),
    ),
    (
        "polynomial weights with exponent 0 are constant",
        ("fedbuff", {"aggregate": 2, "a": 0.0}),
        ("fedbuff", {"aggregate": 2, "weight": "const"}),
    ),
]


@pytest.mark.parametrize(("one", "other"), [pair[1:] for pair in SAME], ids=[pair[0] for pair in SAME])
def test_the_same_facts_give_the_same_decisions(one: Named, other: Named) -> None:
    for seed in range(8):
        pair = Pair(one, other, list)
        pair.play(random.Random(seed), 300)
        assert pair.updates > 10


def uncompensated(decisions: list[Decision]) -> list[object]:
    """All but how much of a correction each gradient gets."""
    return [
        [(part.ticket, part.factor) for part in d.parts] if isinstance(d, Apply) else d for d in decisions
    ]


@pytest.mark.parametrize("name", ["dc-asgd-a", "gap-aware"])
def test_a_compensator_changes_no_decision(name: str) -> None:
    for seed in range(4):
        Pair((name, {}), ("async", {}), uncompensated).play(random.Random(seed), 300)


def without_weights(decisions: list[Decision]) -> list[object]:
    """All but the factors and scales of the gradients, and the scale of the learning rate."""
    seen: list[object] = []
    for decision in decisions:
        match decision:
            case Apply(parts):
                seen.append([part.ticket for part in parts])
            case Fold(ticket):
                seen.append(ticket)
            case _:
                seen.append(decision)
    return seen


def as_sets(decisions: list[Decision]) -> list[object]:
    """Updates by what is in them, whatever the order of summation, and without what is summed early."""
    seen: list[object] = []
    for decision in decisions:
        match decision:
            case Apply(parts, scale, lr_scale):
                seen.append((frozenset(parts), scale, lr_scale))
            case Fold():
                pass
            case _:
                # Grants of sync carry the place in the order of summation.
                seen.append((type(decision).__name__, getattr(decision, "worker", None), decision.ticket))  # type: ignore[union-attr]
    return seen


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("softsync", {"n": ALL}), ("async", {})),
        (("delay-adaptive", {}), ("async", {})),
        (("softsync", {"n": 2}), ("k-batch-async", {"aggregate": ALL // 2})),
        (("fedbuff", {"aggregate": 2}), ("softsync", {"n": 2})),
    ],
    ids=["softsync, n = P", "delay-adaptive", "softsync, n = 2", "FedBuff and softsync"],
)
def test_weights_change_nothing_else(one: Named, other: Named) -> None:
    """Zhang et al. 2016: n = P softsync is Downpour, but for the weights 1 / tau."""
    for seed in range(8):
        Pair(one, other, without_weights).play(random.Random(seed), 300)


def test_delay_adaptive_is_async_while_nothing_is_older_than_the_number_of_workers() -> None:
    """Mishchenko et al. 2022: M / max(M, tau) = 1 for tau <= M; workers of equal speed never come to it."""
    adaptive, plain = start_policy("delay-adaptive", workers=ALL), start_policy("async", workers=ALL)
    for commits in range(200):
        worker = f"w{commits % ALL}"
        assert adaptive.commit(worker) == plain.commit(worker)
    assert max(plain.staleness) == ALL - 1


def test_a_robust_barrier_is_sync_whose_parts_come_together() -> None:
    """Who waits for whom is the same; only the sum, which they do not have, and its scale differ."""

    def updates(decisions: list[Decision]) -> list[object]:
        return [
            # What sync has summed keeps its place before a newcomer of a lower rank.
            sorted(part.ticket for part in d.parts) if isinstance(d, Apply) else type(d).__name__
            for d in decisions
            if not isinstance(d, Fold)
        ]

    for seed in range(8):
        pair = Pair(("median", {"fewest": 1}), ("sync", {}), updates)
        pair.play(random.Random(seed), 400, churn=seed % 2 == 0)
        assert pair.updates > 10


@pytest.mark.parametrize("one", [("k-sync", {"aggregate": ALL}), ("k-async", {"aggregate": ALL})])
def test_all_of_all_is_sync(one: Named) -> None:
    """Dutta et al. 2018: K = P is synchronous SGD; only `sync` fixes the order of summation."""
    for seed in range(8):
        pair = Pair(one, ("sync", {}), as_sets)
        pair.play(random.Random(seed), 400)
        assert pair.updates > 10


def test_ssp_without_slack_is_a_barrier_whose_updates_are_summed() -> None:
    """SSP(0): each clock applies every worker's gradient once, and nobody starts the next before all have."""
    race = Race("ssp", {"slack": 0}, 4).until(4 * 200)
    assert race.clocks == [200] * 4
    assert race.gap == 0 and set(race.sizes) == {1}
