"""The synchronous family: BSP, and backup workers (Chen et al. 2016, Revisiting Distributed Synchronous SGD)."""

from itertools import permutations

import pytest

from psserver.policies import Apply, Composition, Grant, Part, PolicyError
from psserver.policies.parts.gates import WaitForUpdate
from psserver.policies.parts.staleness_rules import DropStale
from psserver.policies.parts.triggers import Everyone
from tests.policies.harness import start_policy
from tests.sentences import Recorder


def test_an_update_is_the_mean_of_one_gradient_per_worker() -> None:
    """BSP: x <- x - eta * (1/n) * sum of g_i(x), all g_i of the same x."""
    harness = start_policy("sync", workers=4)
    for _ in range(3):
        for worker in ("w2", "w0", "w3", "w1"):
            harness.commit(worker)
    assert [update.scale for update in harness.updates] == [0.25, 0.25, 0.25]
    assert all(part.factor == 1.0 for update in harness.updates for part in update.parts)
    assert [harness.authors(update) for update in harness.updates] == [["w0", "w1", "w2", "w3"]] * 3
    assert set(harness.staleness) == {0}
    assert all(harness.base[ticket] == 3 for ticket in harness.held.values())


@pytest.mark.parametrize("arrival", list(permutations(("w0", "w1", "w2"))))
def test_the_sum_is_in_the_order_of_ranks_however_the_commits_come(arrival: tuple[str, ...]) -> None:
    harness = start_policy("sync")
    for worker in arrival:
        harness.commit(worker)
    assert harness.authors(harness.updates[0]) == ["w0", "w1", "w2"]
    # What was summed early is the head of the update, in the same order.
    head = [part.ticket for part in harness.updates[0].parts[: len(harness.folded)]]
    assert harness.folded == head


def test_a_grant_says_the_place_in_the_sum() -> None:
    harness = start_policy("sync", backup=0)
    harness.commit("w0")
    harness.commit("w2")
    decisions = harness.commit("w1", again=False)
    assert [d.turn for d in decisions if isinstance(d, Grant)] == [0, 2]
    # Where chance decides who is in time there is no such place.
    harness = start_policy("sync", backup=1)
    harness.commit("w0")
    assert [d.turn for d in harness.commit("w1") if isinstance(d, Grant)] == [None]


def test_backup_workers_are_not_waited_for_and_their_late_work_is_cancelled() -> None:
    """Chen et al. 2016: N + b workers, the first N gradients of a version make the next, the rest is dropped."""
    harness = start_policy("sync", workers=4, backup=1)
    late = harness.held["w1"]
    for worker in ("w3", "w0", "w2"):
        harness.commit(worker)
    assert harness.authors(harness.updates[0]) == ["w3", "w0", "w2"]
    assert harness.updates[0].scale == 1 / 3
    assert harness.cancelled == {late: "version 1 was made without it"}
    assert "w1" not in harness.held
    harness.ready("w1")
    assert harness.base[harness.held["w1"]] == 1


def test_a_lost_worker_uses_up_a_backup_first() -> None:
    harness = start_policy("sync", workers=4, backup=1)
    harness.leave("w3")
    harness.commit("w0")
    harness.commit("w1")
    assert harness.version == 0
    harness.commit("w2")
    assert (harness.version, len(harness.updates[0].parts)) == (1, 3)


def test_what_is_folded_is_what_is_applied() -> None:
    """A shard has summed the folded ones already: a decision that changed them would be a lie."""
    harness = start_policy("sync", workers=3)
    harness.commit("w0")
    decisions = harness.commit("w1") + harness.leave("w2")
    apply = next(d for d in decisions if isinstance(d, Apply))
    assert apply.parts == tuple(Part(ticket) for ticket in harness.folded)


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
