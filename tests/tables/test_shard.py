"""Tables in shards, beside their dense twin: a variable with a row for every id. Both must have equal bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.checkpoint import settled
from psserver.decisions.orders import Apply, Discard, Fold, Hold, Install, Order, Release, Seal
from psserver.optimizers import build
from psserver.policies import TensorParts
from psserver.records import StateError
from psserver.shard import Shard
from psserver.shard.resharding import reshard
from pswire.model.initial_rows import initial_rows
from pswire.model.plan import Plan, VariableSpec, make_plan
from pswire.model.tables import Floats, TableSpec, mix, split, unique
from tests.promises import promise
from tests.repetitions import repetitions

IDS, DIM = 24, 3
SPEC = TableSpec("items", DIM, "uniform", (-1.0, 1.0), 3)
KEYS = mix(np.arange(IDS))
RULES: list[dict[str, object]] = [
    {"name": "sgd", "learning_rate": 0.25},
    {"name": "adagrad", "learning_rate": 0.5},
]


PLAIN, TAYLOR = TensorParts(), TensorParts("taylor")


def plan_on(servers: int) -> Plan:
    return make_plan([VariableSpec("twin", (IDS, DIM)), VariableSpec("bias", (2,))], servers, [SPEC])


class Cluster:
    """Shards of one job, that execute the same orders."""

    def __init__(self, servers: int, rule: dict[str, object], tensors: TensorParts = PLAIN) -> None:
        self.plan, self.rule, self.tensors = plan_on(servers), rule, tensors
        self.shards = self.made()
        self.order(Hold(0, 0, initialise=True))
        # The twin begins as the table's rows do.
        self.payload(0, initial_rows(SPEC, KEYS), ())
        self.order(Seal(0), Install(0))
        self.version = 0

    def made(self) -> list[Shard]:
        return [
            Shard(self.plan, s, build(self.rule), versions=8, tensors=self.tensors)
            for s in range(len(self.plan.shards))
        ]

    def order(self, *orders: Order) -> None:
        for order in orders:
            for shard in self.shards:
                shard.execute(order)

    def payload(
        self, ticket: int, twin: Floats, ids: tuple[int, ...], gradients: Floats | None = None
    ) -> None:
        flats = self.plan.scatter([twin, np.full(2, ticket, np.float32)])
        for shard, flat in zip(self.shards, flats, strict=True):
            slot = shard.begin(ticket)
            slot.values[...] = flat
            if ids and gradients is not None:
                keys, inverse = unique(np.array(ids))
                rows = np.zeros((keys.size, DIM), np.float32)
                rows[inverse] = gradients
                part = split(keys, len(self.shards))[shard.layout.server]
                slot.rows = [(keys[part], rows[part])]
            assert shard.staging.finish(slot)

    def push(self, ticket: int, ids: tuple[int, ...], seed: int) -> None:
        """Push the same gradient to the rows `ids` of both."""
        rows = np.random.default_rng(seed).standard_normal((len(ids), DIM)).astype(np.float32)
        twin = np.zeros((IDS, DIM), np.float32)
        twin[list(ids)] = rows
        self.payload(ticket, twin, ids, rows)

    def twin(self, version: int) -> Floats:
        values = [shard.arena.values(version) for shard in self.shards]
        return self.plan.gather([each for each in values if each is not None])[0]

    def table(self, version: int) -> Floats:
        keys, inverse = unique(np.arange(IDS))
        parts = split(keys, len(self.shards))
        read = [
            shard.read_rows([keys[part]], version)[0] for shard, part in zip(self.shards, parts, strict=True)
        ]
        return np.concatenate(read)[inverse]

    def restart(self, servers: int, *, checkpoint: bool = False) -> None:
        """Continue on that many servers from what these hold, or from what a checkpoint of them would have."""
        new = plan_on(servers)
        held = [shard.state() for shard in self.shards]
        states = reshard([settled(each) if checkpoint else each for each in held], self.plan, new)
        self.plan = new
        self.shards = self.made()
        for shard, state in zip(self.shards, states, strict=True):
            shard.restore(state)


Step = tuple[str, tuple[int, ...], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["async", "sync", "dropped", "folded then dropped", "1", "2", "3"]),
        st.lists(st.integers(0, IDS - 1), unique=True, max_size=6).map(tuple),
        st.integers(0, 1000),
    ),
    max_size=12,
)


@promise(
    "A table ends with the bits of a dense variable under sgd and adagrad, on 1 to 3 servers, under each "
    "allowed policy."
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
@settings(max_examples=repetitions(20, soak=1000))
@given(servers=st.integers(1, 3), steps=STEPS)
def test_a_table_has_the_bits_of_its_dense_twin(
    rule: dict[str, object], servers: int, steps: list[Step]
) -> None:
    cluster, ticket = Cluster(servers, rule), 1
    for kind, ids, seed in steps:
        if kind.isdecimal():
            cluster.restart(int(kind))
            continue
        count = 3 if kind == "sync" else 1
        tickets = range(ticket, ticket + count)
        ticket += count
        for number in tickets:
            cluster.order(Hold(number, cluster.version))
            cluster.push(number, tuple((each + number) % IDS for each in ids), seed + number)
            cluster.order(Seal(number))
        before = [shard.tables.rows_saved() for shard in cluster.shards] if "dropped" in kind else []
        if kind == "dropped":
            cluster.order(*map(Release, tickets))
        elif kind == "folded then dropped":
            cluster.order(*(Fold(number, 0.5) for number in tickets), Discard())
        else:
            # One is in the sum, when the update is decided; others are folded with it.
            first, *others = tickets
            cluster.order(Fold(first, 0.75))
            if seed % 3 == 0:
                cluster.restart(1 + seed % 2)
            apply = Apply(cluster.version + 1, 1 / count, 0.5, tuple(Fold(n, 1.0) for n in others))
            cluster.order(apply)
            cluster.version += 1
        for shard, rows in zip(cluster.shards, before, strict=False):
            # Rows, slots, ages and counts.
            assert all(np.array_equal(rows[n], array) for n, array in shard.tables.rows_saved().items())
        assert np.array_equal(cluster.table(cluster.version), cluster.twin(cluster.version))


@promise(
    "Compensated rows have the bits of the dense twin, through restarts, checkpoints and copies; they are "
    "replayed."
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
@settings(max_examples=repetitions(20, soak=1000))
@given(servers=st.integers(1, 3), data=st.data())
def test_compensated_rows_have_the_bits_of_their_dense_twin(
    rule: dict[str, object], servers: int, data: st.DataObject
) -> None:
    """Tickets begin, commit and are applied in any order, while servers restart."""
    cluster, granted, committed, ticket = Cluster(servers, rule, TAYLOR), list[int](), list[int](), 0
    for _ in range(data.draw(st.integers(1, 14))):
        match data.draw(st.sampled_from(["grant", "commit", "apply", "apply", "fold", "restart", "resume"])):
            case "grant":
                granted.append(ticket := ticket + 1)
                cluster.order(Hold(ticket, cluster.version))
            case "commit" if granted:
                number = granted.pop(data.draw(st.integers(0, len(granted) - 1)))
                ids = data.draw(st.lists(st.integers(0, IDS - 1), unique=True, max_size=6).map(tuple))
                cluster.push(number, ids, number)
                cluster.order(Seal(number))
                committed.append(number)
            case "fold" if len(committed) > 1:
                cluster.order(Fold(committed.pop(0), 0.75, 0.5))
            case "apply" if committed:
                apply = Apply(cluster.version + 1, 0.5, 1.0, (Fold(committed.pop(0), 1.0, 0.25),))
                cluster.order(apply)
                cluster.version += 1
            case "restart":
                cluster.restart(data.draw(st.integers(1, 3)))
            case "resume":
                # Workers are gone; what they have committed counts.
                cluster.restart(data.draw(st.integers(1, 3)), checkpoint=True)
                cluster.order(*map(Release, granted))
                granted.clear()
        assert np.array_equal(cluster.table(cluster.version), cluster.twin(cluster.version))
    cluster.order(*map(Release, [*granted, *committed]))
    assert not any(table.undo_bytes for shard in cluster.shards for table in shard.tables.tables)


def test_compensation_changes_rows_and_leaves_what_was_pushed() -> None:
    found = []
    for strength in (0.0, 0.5):
        cluster = Cluster(1, RULES[0], TAYLOR)
        cluster.order(Hold(1, 0), Hold(2, 0))
        for number in (1, 2):
            cluster.push(number, (1, 5), 7)
            cluster.order(Seal(number))
        cluster.order(Apply(1, 1.0, 1.0, (Fold(1, 1.0),)))
        staged = cluster.shards[0].staging.rows(2)
        pushed = [values.copy() for _, values in staged]
        cluster.order(Apply(2, 1.0, 1.0, (Fold(2, 1.0, strength),)))
        assert all(np.array_equal(one, own) for one, (_, own) in zip(pushed, staged, strict=True))
        found.append(cluster.shards[0].read_rows([np.sort(KEYS[[1, 5]])], 2)[0])
    assert not np.array_equal(*found)


def test_a_ticket_reads_its_version_until_it_has_read_while_updates_run() -> None:
    cluster = Cluster(2, RULES[0])
    cluster.order(Hold(1, 0), Hold(2, 0))
    before = cluster.table(0)
    for _ in range(3):
        cluster.order(Hold(cluster.version + 3, cluster.version))
        cluster.push(cluster.version + 3, (1, 5, 7), cluster.version)
        cluster.order(Seal(cluster.version + 3))
        cluster.order(Apply(cluster.version + 1, 1.0, 1.0, (Fold(cluster.version + 3, 1.0),)))
        cluster.version += 1
    assert np.array_equal(cluster.table(0), before)
    assert not np.array_equal(cluster.table(3), before)
    for shard in cluster.shards:
        shard.row_holds.has_read(1)
        assert any(table.undo_bytes for table in shard.tables.tables)
        shard.row_holds.has_read(2)
        assert not any(table.undo_bytes for table in shard.tables.tables)
        with pytest.raises(ValueError):
            shard.read_rows([KEYS[:0]], 0)


def test_a_state_with_rows_that_do_not_fit_is_refused() -> None:
    cluster = Cluster(1, RULES[0])
    cluster.order(Hold(1, 0))
    cluster.push(1, (1, 2), 1)
    cluster.order(Seal(1))
    state = cluster.shards[0].state()
    names = [name for name in state.arrays if name.startswith(("rows/", "table/"))]
    assert len(names) == 6
    for name in names:
        for broken in (None, state.arrays[name][::-1][1:], state.arrays[name].astype(np.float64)):
            arrays = {each: array for each, array in state.arrays.items() if each != name}
            if broken is not None:
                arrays[name] = broken
            if (
                name.startswith("table/")
                and broken is not None
                and not broken.size
                and broken.dtype != np.float64
            ):
                continue
            fresh = Shard(cluster.plan, 0, build(RULES[0]), versions=8)
            with pytest.raises(StateError):
                fresh.restore(type(state)(state.facts, arrays))
