"""Updates of rows where they lie: the bits of dense variables, elements kept back, never read torn."""

import numpy as np
import pytest

from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Contribution, Table, Tables
from pswire.model.initial_rows import initial_rows
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec, mix, unique
from pswire.transport.codecs import FLOAT32
from pswire.transport.rows import RowFormat
from tests.promises import promise
from tests.repetitions import repetitions, usually
from tests.tables.twin import SGD, SPEC, gradient, read_meanwhile, update

RULES: list[dict[str, object]] = [
    *({"name": name} for name in ("sgd", "adagrad", "momentum", "rmsprop", "adam", "ftrl")),
    {"name": "adam", "amsgrad": True, "beta_2": 0.5, "beta_1": 0.0},
]
ROWWISE: dict[str, object] = {"name": "rowwise-adagrad", "learning_rate": 0.1}

TOGETHER = {
    "in one store": (TableSpec("one", 3), TableSpec("two", 3)),
    "in two stores": (TableSpec("one", 3), TableSpec("two", 3, optimizer='{"name":"sgd"}')),
    "of which some are not admitted": (TableSpec("one", 3, admit=0.5), TableSpec("two", 3)),
}


def called(config: dict[str, object]) -> str:
    return "-".join(map(str, config.values()))


class Dense:
    """Each row as a dense variable of its own, which an update moves if it has its key."""

    def __init__(self, config: dict[str, object]) -> None:
        self.by_row = config["name"] == "adam"
        self.optimizer = build(config)
        self.rows: dict[int, tuple[np.ndarray, dict[str, np.ndarray], int]] = {}

    def update(self, version: int, parts: list[Contribution]) -> None:
        sums: dict[int, tuple[np.ndarray, float]] = {}
        for keys, rows, factor in parts:
            for key, row in zip(keys.tolist(), rows, strict=True):
                if key not in sums:
                    sums[key] = row * np.float32(factor), 1.0
                else:
                    sums[key] = sums[key][0] + row * np.float32(factor), 1.0
        for key, (total, _) in sums.items():
            first = initial_rows(SPEC, np.array([key], np.uint64))[0]
            x, slots, count = self.rows.get(key, (first, self.optimizer.init(SPEC.dim), 0))
            out = np.empty_like(x)
            step = count if self.by_row else version
            scale = 1.0 / len(parts)
            self.optimizer.update(x, total.copy(), out, slots, version=step, lr_scale=1.0, scale=scale)
            self.rows[key] = np.where(np.isnan(out), x, out), slots, count + 1

    def arrays(self, name: str) -> np.ndarray:
        return np.array([slots[name] for _, (_, slots, _) in sorted(self.rows.items())])


@promise("Rows have the bits of dense variables that only their own updates move.")
@pytest.mark.parametrize("config", usually([RULES[0], RULES[4], RULES[6]], soak=RULES), ids=called)
def test_rows_have_the_bits_of_dense_variables(config: dict[str, object]) -> None:
    """With rows of several ages, and new ones in each update; some averages become subnormal."""
    ours, twin = Table(SPEC, rows_optimizer(config, build(SGD))), Dense(config)
    for step in range(30):
        parts = [gradient(list(range(n, 3 * step + 40, n + 1)), step + n, 0.5) for n in range(3)]
        for keys, rows, _ in parts:
            rows *= np.float32(10) ** -(keys % 40).astype(np.float32)[:, None]
        twin.update(step, parts)
        update(ours, *[(keys, rows.copy(), factor) for keys, rows, factor in parts])
    state = ours.state()
    assert state.keys.tolist() == sorted(twin.rows)
    assert state.values.tobytes() == np.array([twin.rows[key][0] for key in sorted(twin.rows)]).tobytes()
    assert state.count.tolist() == [twin.rows[key][2] for key in sorted(twin.rows)]
    for name, slot in state.slots.items():
        np.testing.assert_allclose(slot, twin.arrays(name), rtol=0, atol=1e-37)


@pytest.mark.parametrize("config", [*RULES, ROWWISE], ids=called)
def test_elements_that_would_not_be_finite_stay_as_they_are(config: dict[str, object]) -> None:
    """All other rows, and all other elements of rules without whole rows, move as ever."""
    ours, tame = (Table(SPEC, rows_optimizer(config, build(SGD))) for _ in range(2))
    whole = config is ROWWISE
    first = gradient(list(range(200)), 0)
    for each in (ours, tame):
        update(each, first, keep=True)
    keys, rows, _ = gradient(list(range(100, 300)), 1)
    found, wild = mix(np.arange(300)), rows.copy()
    # In the first block and in others, in old rows and in new ones; twice in one row.
    spots = [(0, 0), (77, 2), (150, 0), (150, 1), (199, 2)]
    for row, column in spots:
        wild[row, column] = np.inf
    expected = len({row for row, _ in spots}) * SPEC.dim if whole else len(spots)
    assert update(ours, (keys, wild.copy(), 1.0), keep=True) == expected
    assert update(tame, (keys, rows, 1.0), keep=True) == 0
    state, other, before = ours.state(), tame.state(), tame.read(keys, 1)
    assert all(np.isfinite(each).all() for each in (state.values, *state.slots.values()))
    # Ages and counts advance.
    assert (
        state.count.tobytes() == other.count.tobytes() and state.touched.tobytes() == other.touched.tobytes()
    )
    kept = np.zeros(rows.shape, bool)
    for row, column in spots:
        kept[row, slice(None) if whole else column] = True
    now = ours.read(keys)
    assert now[kept].tobytes() == before[kept].tobytes()
    assert now[~kept].tobytes() == tame.read(keys)[~kept].tobytes()
    assert ours.read(found, 1).tobytes() == tame.read(found, 1).tobytes()


def test_readers_see_no_mixture_of_rows_written_in_place() -> None:
    spec, rule = TableSpec("t", 16, "zeros", ()), rows_optimizer(SGD, build(SGD))
    keys = np.sort(mix(np.arange(1000)))
    ones = np.ones((keys.size, 16), np.float32)
    ours = Table(spec, rule)
    with read_meanwhile(ours, keys):
        for _ in range(repetitions(1000, soak=20_000)):
            update(ours, (keys, ones, 1.0), keep=True)


@pytest.mark.parametrize("specs", TOGETHER.values(), ids=TOGETHER)
def test_rows_that_came_in_one_message_have_the_bits_of_others(specs: tuple[TableSpec, ...]) -> None:
    """The server keeps what it received in two arrays; a simulated worker's rows lie here and there."""
    plan, rule = make_plan([VariableSpec("bias", (2,))], 1, specs), build({"name": "adagrad"})
    fast, slow, several = (Tables(plan, 0, rule) for _ in range(3))
    for step in range(30):
        random = np.random.default_rng(step)
        counts = [int(random.integers(0, 30)), 0 if step % 3 else 20]
        rows = []
        for count in counts:
            keys, _ = unique(random.integers(0, 40, count))
            rows.append((keys, random.normal(size=(keys.size, 3)).astype(np.float32)))
        if not sum(keys.size for keys, _ in rows):
            continue
        form = RowFormat(specs, FLOAT32, tuple(keys.size for keys, _ in rows))
        came, _ = form.decode(memoryview(b"".join(bytes(part.data) for part in form.encode(rows, ()))))
        wanted = tuple(unique(np.arange(step, 60))[0] for _ in specs)
        for tables, given in ((fast, came), (slow, rows), (several, came)):
            tables.add(given, 0.5, step)
            if tables is several:
                # Another contribution that changes nothing.
                tables.add([(keys, np.zeros_like(own)) for keys, own in rows], 0.5, step)
            assert not tables.advance(0.25, 1.0)[1]
            tables.committed()
        found = [[each.tobytes() for each in t.read(wanted, t.tables[0].version)] for t in (fast, slow)]
        assert found[0] == found[1]
    one, two = fast.rows_saved(), slow.rows_saved()
    assert one.keys() == two.keys()
    assert all(one[name].size and one[name].tobytes() == two[name].tobytes() for name in one)
    values = [name for name in one if name.endswith("values")]
    if specs[0].admit == 1:
        more = several.rows_saved()
        assert all(np.array_equal(one[name], more[name]) for name in values)
    assert fast.figures() == slow.figures()
