"""The synchronous family: BSP, and backup workers (Chen et al. 2016, Revisiting Distributed Synchronous SGD)."""

from itertools import permutations

import pytest

from psserver.policies import Apply, Grant, Part
from tests.policies.harness import kinds, sit


def test_an_update_is_the_mean_of_one_gradient_per_worker() -> None:
    """BSP: x <- x - eta * (1/n) * sum of g_i(x), all g_i of the same x."""
    table = sit("sync", workers=4)
    for _ in range(3):
        for worker in ("w2", "w0", "w3", "w1"):
            table.commit(worker)
    assert [update.scale for update in table.updates] == [0.25, 0.25, 0.25]
    assert all(part.factor == 1.0 for update in table.updates for part in update.parts)
    assert [table.authors(update) for update in table.updates] == [["w0", "w1", "w2", "w3"]] * 3
    assert set(table.staleness) == {0}
    assert all(table.base[ticket] == 3 for ticket in table.held.values())


def test_early_workers_wait_for_the_rest() -> None:
    table = sit("sync")
    table.commit("w1")
    table.commit("w2")
    assert (table.waits("w1"), table.waits("w2"), table.version) == (True, True, 0)
    table.commit("w0")
    assert table.version == 1
    assert not any(table.waits(worker) for worker in ("w0", "w1", "w2"))


@pytest.mark.parametrize("arrival", list(permutations(("w0", "w1", "w2"))))
def test_the_sum_is_in_the_order_of_ranks_however_the_commits_come(arrival: tuple[str, ...]) -> None:
    table = sit("sync")
    for worker in arrival:
        table.commit(worker)
    assert table.authors(table.updates[0]) == ["w0", "w1", "w2"]
    # What was summed early is the head of the update, in the same order.
    head = [part.ticket for part in table.updates[0].parts[: len(table.folded)]]
    assert table.folded == head


def test_a_contribution_is_folded_once_all_lower_ranks_are_in() -> None:
    table = sit("sync", workers=4)
    assert kinds(table.commit("w1")) == []
    assert kinds(table.commit("w0")) == ["Fold", "Fold"]
    assert kinds(table.commit("w2")) == ["Fold"]
    assert [table.owner[ticket] for ticket in table.folded] == ["w0", "w1", "w2"]


def test_a_grant_says_the_place_in_the_sum() -> None:
    table = sit("sync", backup=0)
    table.commit("w0")
    table.commit("w2")
    decisions = table.commit("w1", again=False)
    assert [d.turn for d in decisions if isinstance(d, Grant)] == [0, 2]
    # Where chance decides who is in time there is no such place.
    table = sit("sync", backup=1)
    table.commit("w0")
    assert [d.turn for d in table.commit("w1") if isinstance(d, Grant)] == [None]


def test_the_barrier_shrinks_when_a_worker_has_no_more_data() -> None:
    table = sit("sync")
    table.commit("w0")
    table.commit("w1", again=False)
    table.commit("w2", again=False)
    table.done("w1")
    table.commit("w0")
    assert table.version == 1
    assert "Apply" in kinds(table.done("w2"))
    assert [update.scale for update in table.updates] == [1 / 3, 1.0]


def test_the_barrier_shrinks_when_a_worker_is_lost() -> None:
    table = sit("sync")
    table.commit("w0")
    table.commit("w2")
    decisions = table.leave("w1")
    assert kinds(decisions) == ["Apply", "Grant", "Grant"]
    assert table.authors(table.updates[0]) == ["w0", "w2"]


def test_a_contribution_outlives_its_worker() -> None:
    table = sit("sync")
    table.commit("w1")
    table.leave("w1")
    table.commit("w0")
    table.commit("w2")
    assert table.authors(table.updates[0]) == ["w0", "w1", "w2"]


def test_a_worker_that_comes_back_waits_for_the_update_with_its_former_contribution() -> None:
    table = sit("sync")
    table.commit("w1")
    table.leave("w1")
    table.join("w1")
    table.ready("w1")
    assert table.waits("w1")
    table.commit("w0")
    table.commit("w2")
    assert table.authors(table.updates[0]) == ["w0", "w1", "w2"]
    assert table.base[table.held["w1"]] == 1


def test_a_newcomer_is_part_of_the_round_it_comes_into() -> None:
    table = sit("sync", workers=2)
    table.commit("w0")
    table.join("w2")
    table.ready("w2")
    table.commit("w1")
    assert table.version == 0
    table.commit("w2")
    assert (table.version, table.updates[0].scale) == (1, 1 / 3)


def test_an_abandoned_ticket_holds_the_round_until_its_worker_has_another() -> None:
    table = sit("sync", workers=2)
    table.commit("w0")
    table.abandon("w1")
    assert table.version == 0
    table.ready("w1")
    table.commit("w1")
    assert table.version == 1


def test_backup_workers_are_not_waited_for_and_their_late_work_is_cancelled() -> None:
    """Chen et al. 2016: N + b workers, the first N gradients of a version make the next, the rest is dropped."""
    table = sit("sync", workers=4, backup=1)
    late = table.held["w1"]
    for worker in ("w3", "w0", "w2"):
        table.commit(worker)
    assert table.authors(table.updates[0]) == ["w3", "w0", "w2"]
    assert table.updates[0].scale == 1 / 3
    assert table.cancelled == {late: "version 1 was made without it"}
    assert "w1" not in table.held
    table.ready("w1")
    assert table.base[table.held["w1"]] == 1


def test_a_lost_worker_uses_up_a_backup_first() -> None:
    table = sit("sync", workers=4, backup=1)
    table.leave("w3")
    table.commit("w0")
    table.commit("w1")
    assert table.version == 0
    table.commit("w2")
    assert (table.version, len(table.updates[0].parts)) == (1, 3)


def test_with_fewer_workers_than_an_update_needs_all_that_are_left_make_it() -> None:
    table = sit("sync", workers=4, backup=1)
    table.leave("w3")
    table.leave("w2")
    table.commit("w0")
    table.commit("w1")
    assert table.authors(table.updates[0]) == ["w0", "w1"]


def test_what_is_folded_is_what_is_applied() -> None:
    """A shard has summed the folded ones already: a decision that changed them would be a lie."""
    table = sit("sync", workers=3)
    table.commit("w0")
    decisions = table.commit("w1") + table.leave("w2")
    apply = next(d for d in decisions if isinstance(d, Apply))
    assert apply.parts == tuple(Part(ticket) for ticket in table.folded)
