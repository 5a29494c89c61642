"""Weights by samples under `sync`. `test_reference` has the rest of the policy."""

from itertools import permutations

import pytest

from psserver.policies import Composition, PolicyError
from psserver.policies.parts.gates import WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import Everyone
from tests.policies.harness import start_policy
from tests.sentences import Recorder


@pytest.mark.parametrize("arrival", list(permutations((("w0", 0), ("w1", 32), ("w2", 1)))))
def test_by_samples_each_counts_as_many_as_it_has(arrival: tuple[tuple[str, int], ...]) -> None:
    harness = start_policy("sync", weight="samples")
    for worker, samples in arrival:
        harness.commit(worker, samples=samples)
    (update,) = harness.updates
    assert harness.authors(update) == ["w0", "w1", "w2"]
    assert [part.factor * update.scale for part in update.parts] == pytest.approx([0, 32 / 33, 1 / 33])
    assert set(harness.folded) <= {part.ticket for part in update.parts}


def test_by_samples_equal_ones_have_the_numbers_of_an_unweighted_mean() -> None:
    harness = start_policy("sync", weight="samples")
    for worker in ("w2", "w0", "w1"):
        harness.commit(worker, samples=10)
    (update,) = harness.updates
    assert [part.factor for part in update.parts] == [1.0] * 3 and update.scale == 1 / 3


def test_by_samples_nobody_counts_for_more_than_the_bound() -> None:
    harness = start_policy("sync", weight="samples", most_samples=32)
    for worker, samples in (("w0", 2**40), ("w1", 32), ("w2", 16)):
        harness.commit(worker, samples=samples)
    (update,) = harness.updates
    assert [part.factor * update.scale for part in update.parts] == pytest.approx([0.4, 0.4, 0.2])


def test_contributions_without_samples_make_no_update_and_are_dropped() -> None:
    harness = start_policy("sync", weight="samples")
    for worker in ("w0", "w1", "w2"):
        harness.commit(worker, samples=0)
    assert (harness.version, harness.folded, set(harness.dropped.values())) == (0, [], {"no samples"})
    assert not any(harness.waits(worker) for worker in ("w0", "w1", "w2"))


def test_only_a_mean_is_weighted_by_samples(sentences: Recorder) -> None:
    with pytest.raises(PolicyError) as refused:
        Composition(WaitForUpdate(), Everyone(3), DropStale(0), most_samples=32, norm="sum")
    sentences.check(refused)
