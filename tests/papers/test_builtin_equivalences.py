"""Policies that must coincide at the ends of their knobs: the cheapest proofs there are.

Each pair hears the same random facts, with departures, returns and ends, and is compared decision by
decision. Where the papers claim the identity it is named; the others follow from the rules.
"""

import random

import pytest

from tests.papers.side_by_side import WORKERS, Named, Pair

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
