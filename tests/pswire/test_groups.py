"""Groups of rows that take turns: every row in one of them, of nearly equal size, the same on any number of servers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.model.groups import Groups
from pswire.model.plan import Plan, PlanError, VariableSpec, make_plan
from pswire.transport.blocks import INT4, runs
from tests.sentences import Recorder

SHAPES = st.lists(st.sampled_from([(40, 64), (7,), (33, 5), (12, 100), (3, 50), ()]), min_size=2, max_size=6)


def model(shapes: list[tuple[int, ...]]) -> list[VariableSpec]:
    state = VariableSpec("mean", (9,), kind="state")
    return [VariableSpec(f"v{number}", shape) for number, shape in enumerate(shapes)] + [state]


def numbered(plan: Plan, groups: Groups) -> list[np.ndarray]:
    """By variable: the group of each element, 0 for none of what is trained."""
    flats = []
    for shard in plan.shards:
        flat = np.zeros(shard.elements, np.float32)
        for group, part in enumerate(groups.all(shard.server)):
            trained = part.trained
            assert not trained.take(flat).any() and trained.layout.elements == part.layout.trainable
            part.put(flat, np.full(part.layout.elements, group + 1, np.float32))
            assert set(part.take(flat)) <= {group + 1}
        flats.append(flat)
    return plan.gather(flats)


@given(SHAPES, st.integers(2, 4))
def test_rows_are_dealt_in_turn_and_the_smallest_group_begins(
    shapes: list[tuple[int, ...]], count: int
) -> None:
    specs = model([(40, 64), *shapes])
    expected, loads = [], [0] * count
    for spec in specs[:-1]:
        order = sorted(range(count), key=lambda group: loads[group])
        rows = [order[row % count] for row in range(spec.rows)]
        for group in rows:
            loads[group] += spec.width
        expected.append(np.repeat(rows, spec.width).reshape(spec.shape) + 1)
    # No two differ by more than the widest row.
    assert max(loads) - min(loads) <= max(spec.width for spec in specs)
    for servers in (1, 2, 3, 5):
        plan = make_plan(specs, servers)
        *found, state = numbered(plan, Groups(plan, count))
        # Every group has it, and the last one was written last.
        assert set(state) == {count}
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_each_server_has_nearly_the_same_part_of_every_group(servers: int) -> None:
    plan = make_plan(model([(128, 512), (512, 64), (64,)]), servers)
    for shard in plan.shards:
        parts = [part.layout.trainable for part in Groups(plan, 4).all(shard.server)]
        assert sum(parts) == shard.trainable and max(parts) - min(parts) <= 512 + 64 + 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_part_is_a_payload_by_itself(servers: int) -> None:
    """Its elements follow each other row by row, and their encoded bytes are those of the rows."""
    plan = make_plan(model([(40, 64), (7,), (12, 100)]), servers)
    groups = Groups(plan, 3)
    for shard in plan.shards:
        parts = groups.all(shard.server)
        for part in parts:
            assert part.layout.elements == sum(piece.size for piece in part.layout.slices)
            assert [run.start for run in runs(part.layout)] == [piece.offset for piece in part.layout.slices]
            assert part.layout.state == shard.state
        whole = INT4.size(shard) + (len(parts) - 1) * 4 * shard.state
        assert sum(INT4.size(part.layout) for part in parts) == whole
    values = plan.scatter([np.arange(spec.size).reshape(spec.shape) for spec in plan.variables])
    wide = np.concatenate([groups.of(0, shard.server).take(values[shard.server]) for shard in plan.shards])
    assert set(range(0, 40 * 64, 3 * 64)) <= set(wide.tolist())


def test_what_has_changed_since_a_version() -> None:
    plan = make_plan(model([(40, 64)]), 1)
    groups = Groups(plan, 3)
    turns = [groups.of(version, 0) for version in range(3)]
    assert groups.changed(4, 5, 0) == [turns[1]]
    assert groups.changed(4, 6, 0) == [turns[1], turns[2]]
    # All of it, nothing, and a version of before a restart.
    assert groups.changed(4, 7, 0) == groups.changed(4, 4, 0) == groups.changed(4, 3, 0) == []
    assert Groups(plan, 1).changed(4, 5, 0) == []
    assert Groups(plan, 1).of(4, 0).layout is plan.shards[0]


def test_more_groups_than_rows_are_refused(sentences: Recorder) -> None:
    with pytest.raises(PlanError) as refused:
        Groups(make_plan(model([(2, 100), (3,)]), 1), 6)
    sentences.check(refused)
