"""Updates of rows where they lie: the bits of those beside them, the same elements kept back, never read torn."""

import numpy as np
import pytest

from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Table, Tables, TableState
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec, mix, unique
from pswire.transport.codecs import FLOAT32
from pswire.transport.rows import RowFormat
from tests.promises import promise
from tests.repetitions import repetitions, usually
from tests.tables.twin import SGD, SPEC, gradient, read_meanwhile, update

IN_PLACE: list[dict[str, object]] = [
    *({"name": name} for name in ("sgd", "adagrad", "momentum", "rmsprop", "adam", "ftrl")),
    {"name": "adam", "bias": "global"},
    {"name": "adam", "amsgrad": True, "beta_2": 0.5, "beta_1": 0.0},
    {"name": "rowwise-adagrad", "learning_rate": 0.1},
]
BESIDE: list[dict[str, object]] = [
    {"name": "sgd", "clipvalue": 0.1},
    {"name": "adam", "epsilon_outside": True},
    {"name": "adam", "beta_2": 0.9999999},
    {"name": "group-adagrad"},
]

TOGETHER = {
    "in one store": (TableSpec("one", 3), TableSpec("two", 3)),
    "in two stores": (TableSpec("one", 3), TableSpec("two", 3, optimizer='{"name":"sgd"}')),
    "of which some are not admitted": (TableSpec("one", 3, admit=0.5), TableSpec("two", 3)),
}


def arrays(state: TableState) -> list[np.ndarray]:
    return [state.keys, state.values, state.touched, state.count, *state.slots.values()]


@promise("Updates in place have the bits of the others, and keep back the same elements.")
@pytest.mark.parametrize(
    "config",
    usually([IN_PLACE[0], IN_PLACE[7], IN_PLACE[8], BESIDE[3]], soak=[*IN_PLACE, *BESIDE]),
    ids=lambda config: "-".join(map(str, config.values())),
)
def test_updates_in_place_have_the_bits_of_those_beside(config: dict[str, object]) -> None:
    """Over the update that clears subnormals, with rows of several ages, and new ones in each update."""
    fast, slow = (Table(SPEC, rows_optimizer(config, build(SGD))) for _ in range(2))
    assert (fast.store.in_place is None) == (config in BESIDE)
    slow.store.optimizer.one_pass = None
    for step in range(70):
        parts = [gradient(list(range(n, 3 * step + 80, n + 1)), step + n, 0.5 * (step < 3)) for n in range(3)]
        # Of all magnitudes, and then zero: some averages become subnormal.
        for keys, rows, _ in parts:
            rows *= np.float32(10) ** -(keys % 40).astype(np.float32)[:, None]
        for each in (fast, slow):
            update(each, *[(keys, rows.copy(), factor) for keys, rows, factor in parts], keep=step % 2 > 0)
        some = mix(np.arange(300))
        for version in range(fast.oldest, fast.version + 1):
            assert fast.read(some, version).tobytes() == slow.read(some, version).tobytes()
        for one, two in zip(arrays(fast.state()), arrays(slow.state()), strict=True):
            assert one.size and one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    "config", [*IN_PLACE, *BESIDE], ids=lambda config: "-".join(map(str, config.values()))
)
def test_elements_that_would_not_be_finite_stay_as_they_are(config: dict[str, object]) -> None:
    """In place and beside alike. All other rows, and all other elements of rules without whole rows, move as ever."""
    fast, slow, tame = (Table(SPEC, rows_optimizer(config, build(SGD))) for _ in range(3))
    slow.store.optimizer.one_pass = None
    whole = str(config["name"]).endswith("-adagrad")
    first = gradient(list(range(200)), 0)
    for each in (fast, slow, tame):
        update(each, first, keep=True)
    keys, rows, _ = gradient(list(range(100, 300)), 1)
    found, wild = mix(np.arange(300)), rows.copy()
    # In the first block and in others, in old rows and in new ones; twice in one row.
    spots = [(0, 0), (77, 2), (150, 0), (150, 1), (199, 2)]
    for row, column in spots:
        wild[row, column] = np.inf
    expected = len({row for row, _ in spots}) * SPEC.dim if whole else len(spots)
    if "clipvalue" in config:
        expected = 0
    assert update(fast, (keys, wild.copy(), 1.0), keep=True) == expected
    assert update(slow, (keys, wild.copy(), 1.0), keep=True) == expected
    assert update(tame, (keys, rows, 1.0), keep=True) == 0
    for one, two in zip(arrays(fast.state()), arrays(slow.state()), strict=True):
        assert one.size and one.tobytes() == two.tobytes()
    ours, others, before = fast.state(), tame.state(), tame.read(keys, 1)
    assert all(np.isfinite(each).all() for each in (ours.values, *ours.slots.values()))
    # Ages and counts advance.
    assert (
        ours.count.tobytes() == others.count.tobytes() and ours.touched.tobytes() == others.touched.tobytes()
    )
    if expected:
        kept = np.zeros(rows.shape, bool)
        for row, column in spots:
            kept[row, slice(None) if whole else column] = True
        now = fast.read(keys)
        assert now[kept].tobytes() == before[kept].tobytes()
        assert now[~kept].tobytes() == tame.read(keys)[~kept].tobytes()
    assert fast.read(found, 1).tobytes() == tame.read(found, 1).tobytes()


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
    for each in slow.tables:
        each.store.optimizer.one_pass = None
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
