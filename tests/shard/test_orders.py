"""Every entry of the decision log has an order: none is forgotten, and what is no entry is refused."""

import pytest

from psserver.decisions import entries, orders

PART = entries.Part(7, "w0", 0, 0, 0.25, 0.5)

# An entry of each kind, and what it means to a shard.
MEANING: tuple[tuple[entries.Entry, orders.Order], ...] = (
    (entries.Job("j", {}, {}, 1, 2, 0), orders.Note()),
    (entries.Join("w0", 2, 0), orders.Admit("w0", 2)),
    (entries.Work(4, 1, 2), orders.Note()),
    (entries.Resume("w0"), orders.Note()),
    (entries.Start(2), orders.Note()),
    (entries.Initialise("w0", 1), orders.Hold(1, 0, initialise=True, worker="w0")),
    (entries.Install("w0", 1), orders.Install(1)),
    (entries.Grant("w0", 7, 3, 1), orders.Hold(7, 3, 1, worker="w0")),
    (entries.Commit("w0", 7, 0, 8, 0.5, 1.0), orders.Seal(7)),
    (entries.Rate("w0", 0.05, 0.5), orders.Note()),
    (entries.Model("fingerprint", {"name": "sgd"}), orders.NOTE),
    (entries.Fold(7, 0.5), orders.Fold(7, 0.5, 0.0)),
    (entries.Apply(1, 0.5, 1.0, (PART,)), orders.Apply(1, 0.5, 1.0, (orders.Fold(7, 0.5, 0.0),))),
    (entries.Nonfinite(1, 2, "w"), orders.NOTE),
    (entries.Drop("w0", 7, 3, "stale"), orders.Release(7)),
    (entries.Cancel("w0", 7, "overtaken"), orders.Release(7)),
    (entries.Abandon("w0", 7, "done"), orders.Release(7)),
    (entries.Lost("w0"), orders.Note()),
    (entries.Back("w0"), orders.Note()),
    (entries.Leave("w0", "gone"), orders.Dismiss("w0")),
    (entries.Done("w0"), orders.Note()),
    (entries.Timer("round", 1_500_000), orders.Note()),
    (entries.Checkpoint(3), orders.Save(3)),
    (entries.Unsaved(3, "the disk is full"), orders.Note()),
    (entries.Restore("k", 3, 2, 17), orders.Discard()),
    (entries.Note("hot"), orders.Note()),
    (entries.Policy({"name": "sync"}, {"name": "async"}, 3, "plan"), orders.Note()),
    (entries.Settled(4), orders.Note()),
    (entries.Stop("all workers are done", 1, True), orders.Note()),
)


@pytest.mark.parametrize(("entry", "order"), MEANING, ids=lambda made: type(made).__name__)
def test_order_of_each_kind(entry: entries.Entry, order: orders.Order) -> None:
    assert entry.order(set()) == order


def test_no_kind_is_left_out() -> None:
    declared = {kind for kind in vars(entries).values() if isinstance(kind, type) and hasattr(kind, "order")}
    declared -= {entries.LogEntry}
    assert declared == set(entries.KINDS.values()) == {type(entry) for entry, _ in MEANING}


def test_a_kind_without_a_sentence_and_a_part_are_no_entries() -> None:
    class Forgotten(entries.LogEntry):
        pass

    with pytest.raises(TypeError, match="sentence"):
        Forgotten()  # type: ignore[abstract]
    assert not hasattr(PART, "order")


def test_what_was_folded_is_not_ordered_twice() -> None:
    apply = entries.Apply(1, 0.5, 1.0, (PART,))
    folded: set[int] = set()
    entries.Fold(7, 0.5).order(folded)
    assert apply.order(folded) == orders.Apply(1, 0.5, 1.0)
    assert not folded and apply.update(folded).parts == (orders.Fold(7, 0.5),)
