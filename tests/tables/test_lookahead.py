"""Rows of the next batch that are read early: later only what has changed comes, and the bits are the same."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import psworker
from pslab.check.checker import check_run
from pslab.replay import Replay
from pslab.replay.schedule import read_records
from pslab.runs.folder import Run
from pslab.simulator.problems import numpy_problem
from psserver.optimizers import build
from psserver.optimizers.rows import rows_optimizer
from psserver.shard.tables import Table
from psserver.shard.tables.since import read_since
from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec, mix, unique
from pswire.transport.codecs import FLOAT16, FLOAT32
from pswire.transport.rows import RowFormat, encode_changes, most_changes, take_changes
from pswire.v1 import shard_pb2
from psworker.data.lookahead import Lookahead
from psworker.errors import SessionError
from psworker.loop import train
from tests.probes import SessionProbe
from tests.service.serving import Cluster, serving, wait_until
from tests.tables.twin import advance

DIM, IDS = 2, 40
BASE = TableSpec("t", DIM, "uniform", (-1.0, 1.0), 5, evict_every=2)
SPECS = {
    "plain": BASE,
    "age": replace(BASE, evict_age=3),
    "norm": replace(BASE, evict_norm=0.6),
    "capacity": replace(BASE, evict_capacity=1, evict_every=1),
    "admit": replace(BASE, admit=0.4, evict_age=4),
    "after": replace(BASE, admit_after=2, evict_age=3),
}
KEYS = np.sort(mix(np.arange(IDS)))
UPDATES = st.lists(st.lists(st.integers(0, IDS - 1), unique=True, max_size=8), min_size=1, max_size=12)


def table(spec: TableSpec) -> Table:
    return Table(spec, rows_optimizer(None, build({"name": "sgd", "learning_rate": 0.5})))


def change(one: Table, ids: Sequence[int], seed: int) -> None:
    keys = np.sort(mix(np.array(ids, np.int64)))
    gradients = np.random.default_rng(seed).normal(size=(keys.size, DIM)).astype(np.float32)
    advance(one, [(keys, gradients, 1.0)] if keys.size else [], keep=True)


# The part of a server


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=40, deadline=None)
@given(updates=UPDATES)
def test_earlier_rows_and_what_has_changed_are_the_later_rows(
    spec: TableSpec, updates: list[list[int]]
) -> None:
    ours = table(spec)
    # Each version as it was read while it was the newest.
    read = [ours.read(KEYS)]
    for number, ids in enumerate(updates):
        change(ours, ids, number)
        read.append(ours.read(KEYS))
    for since, version in product(range(len(read)), repeat=2):
        (chosen,), (rows,) = read_since([ours], [KEYS], version, since)
        found = read[since].copy()
        found[chosen] = rows
        assert np.array_equal(found.view(np.uint32), read[version].view(np.uint32)), (since, version)
        assert since <= version or chosen.all()


def test_only_rows_that_were_updated_since_come() -> None:
    ours = table(BASE)
    for number, ids in enumerate(([1, 2, 3], [3, 4], [5])):
        change(ours, ids, number)
    wanted = unique([1, 3, 4, 9])[0]
    for since, expected in ((0, [1, 3, 4]), (1, [3, 4]), (2, []), (3, [])):
        (chosen,), (rows,) = read_since([ours], [wanted], 3, since)
        assert np.array_equal(wanted[chosen], unique(expected)[0]) and len(rows) == len(expected)


def test_where_a_slot_may_be_another_rows_all_come() -> None:
    """Rows have gone after the version that is read."""
    ours = table(replace(BASE, evict_age=3, evict_every=1))
    for number, ids in enumerate(([1], [2], [3], [4])):
        change(ours, ids, number)
    assert ours.gone_at == 4 and ours.count == 3
    for version, expected in ((3, True), (4, False)):
        (chosen,), _ = read_since([ours], [unique([2, 3])[0]], version, version)
        assert chosen.tolist() == [expected] * 2


# The part of the wire


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any),
    alike=st.booleans(),
    codec=st.sampled_from([FLOAT32, FLOAT16]),
    seed=st.integers(0, 99),
)
def test_changes_take_their_places(counts: list[int], alike: bool, codec: Any, seed: int) -> None:
    dice = np.random.default_rng(seed)
    tables = [TableSpec(f"t{k}", 3 if alike else 2 + k, "zeros", ()) for k in range(len(counts))]
    form = RowFormat(tables, codec, counts)
    both = [
        [dice.integers(-9, 9, (n, t.dim)).astype(np.float32) for n, t in zip(counts, tables, strict=True)]
        for _ in range(2)
    ]
    chosen = [dice.random(n) < 0.4 for n in counts]
    data = b"".join(
        array.tobytes()
        for array in encode_changes(form, chosen, [r[c] for r, c in zip(both[1], chosen, strict=True)])
    )
    assert len(data) <= most_changes(form)
    expected = [np.where(c[:, None], b, a) for a, b, c in zip(*both, chosen, strict=True)]
    for wrong in (data[:4], data + b"1234", data[:-1] if any(c.any() for c in chosen) else b""):
        with pytest.raises(ValueError):
            take_changes(form, memoryview(wrong), both[0])
    found = take_changes(form, memoryview(data), both[0])
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


ITEMS = TableSpec("items", 3, "uniform", (-1.0, 1.0), 7)
VARIABLES = [(VariableSpec("bias", (2,)), np.zeros(2, np.float32))]


def connect(cluster: Cluster, **more: Any) -> psworker.Session:
    return psworker.connect(cluster.hosts, VARIABLES, tables=[ITEMS], **{"transport": "socket", **more})


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each answer with changes: how many rows were asked for, and the bytes that came."""
    found: list[tuple[int, int]] = []

    def counted(form: RowFormat, data: memoryview, rows: Any) -> Any:
        found.append((sum(form.counts), data.nbytes))
        return take_changes(form, data, rows)

    monkeypatch.setattr("psworker.data.shard_client.take_changes", counted)
    return found


def look_ahead(session: psworker.Session, grant: Any, ids: Any) -> None:
    """Look ahead, and wait until the rows are there: one that has not begun by the push is forgotten."""
    session.look_ahead(grant, {"items": ids})
    wait_until(lambda: SessionProbe(session).looked_ahead, "the early rows")


def push_one(session: psworker.Session, grant: Any, ids: Sequence[int], **more: Any) -> None:
    rows = {"items": (unique(ids)[0], np.ones((len(ids), 3), np.float32))}
    session.contribute(grant, session.plan.scatter([np.ones(2)]), samples=1, rows=rows, **more)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_step_brings_only_rows_that_have_changed(servers: int, came: list[tuple[int, int]]) -> None:
    following = unique(np.arange(4, 40))[0]
    with serving(servers) as cluster, connect(cluster) as session:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        look_ahead(session, grant, np.arange(4, 40))
        push_one(session, grant, [1, 4, 5], ready=True, ahead={"items": following})
        grant = session.ready()
        assert grant is not None and grant.version == 1
        session.pull(grant)
        found = session.pull_rows(grant, {"items": following})["items"]
        assert sum(asked for asked, _ in came) == 36 and len(came) == servers
        assert sum(nbytes for _, nbytes in came) == 8 * servers + 2 * 12
        assert np.array_equal(found, session.lookup("items", np.arange(4, 40))[0][_order(np.arange(4, 40))])
        session.done()


def _order(ids: np.ndarray) -> np.ndarray:
    return np.argsort(mix(ids))


def test_an_own_loop_pulls_what_it_has_looked_ahead_for(came: list[tuple[int, int]]) -> None:
    with serving() as cluster, connect(cluster) as session:
        grant = session.ready()
        for begin in (0, 5, 10, 15):
            assert grant is not None
            ids = np.arange(begin, begin + 10)
            _, rows = session.pull(grant, rows={"items": ids})
            assert np.array_equal(rows["items"], session.lookup("items", ids)[0])
            look_ahead(session, grant, ids + 5)
            session.push(grant, {}, rows={"items": (ids, np.ones((10, 3)))})
            session.commit(grant, samples=1)
            grant = session.ready()
        assert came == [(10, 8 + 5 * 12)] * 3
        session.done()


@pytest.fixture
def read_early(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each early reading: how many rows were asked for."""
    found: list[int] = []
    pull = psworker.data.shard_client.ShardClient.pull_rows

    def counted(self: Any, ticket: int, version: int, after: int, rows: Sequence[Any]) -> Any:
        if not ticket and threading.current_thread().name == "lookahead":
            found.append(sum(keys.size for keys in rows))
        return pull(self, ticket, version, after, rows)  # type: ignore[arg-type]

    monkeypatch.setattr("psworker.data.shard_client.ShardClient.pull_rows", counted)
    return found


@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
def test_rows_that_a_batch_has_are_not_read_early_whoever_updates_them(
    wire_dtype: str, came: list[tuple[int, int]], read_early: list[int]
) -> None:
    """Another worker updates rows before and after the early reading; and this one overwrites what it has pulled."""
    dice = np.random.default_rng(0)
    batches = [np.unique(dice.integers(0, 40, 12)) for _ in range(12)]
    with serving(overrides=["optimizer.name=adagrad"]) as cluster, connect(cluster, name="other") as other:
        with connect(cluster, name="w", wire_dtype=wire_dtype) as session:

            def update_others(ids: np.ndarray) -> None:
                grant = other.ready()
                assert grant is not None
                other.pull(grant)
                push_one(other, grant, ids.tolist())

            grant = session.ready()
            for ids, following in zip(batches, batches[1:], strict=False):
                assert grant is not None
                keys = unique(ids)[0]
                session.pull(grant)
                rows = session.pull_rows(grant, {"items": keys})["items"]
                newest, version = session.lookup("items", ids)
                assert version == grant.version and np.array_equal(rows, newest[_order(ids)])
                rows[...] = 9.0
                # Rows that this batch has, and then others.
                update_others(ids[1::4])
                look_ahead(session, grant, following)
                update_others(np.unique(dice.integers(0, 40, 3)))
                # Half of the rows have a gradient.
                push_one(session, grant, ids[::2].tolist(), ready=True, ahead={"items": unique(following)[0]})
                grant = session.ready()
            other.close()
            session.done()
    shared = [np.intersect1d(one, two).size for one, two in zip(batches, batches[1:], strict=False)]
    sizes = [ids.size for ids in batches[1:]]
    # Nothing has come before the first early reading.
    assert read_early == [sizes[0], *(n - m for n, m in zip(sizes[1:], shared[1:], strict=True) if n > m)]
    assert len(came) == len(sizes) and sum(nbytes for _, nbytes in came) < sum(12 * n for n, _ in came)


def test_a_batch_of_the_same_rows_is_not_read_early_at_all(
    came: list[tuple[int, int]], read_early: list[int]
) -> None:
    with serving() as cluster, connect(cluster) as session:
        grant = session.ready()
        for _ in range(3):
            assert grant is not None
            _, rows = session.pull(grant, rows={"items": [1, 2, 3]})
            assert np.array_equal(rows["items"], session.lookup("items", [1, 2, 3])[0])
            look_ahead(session, grant, [1, 2, 3])
            # One of them has no gradient, and need not come again.
            push_one(session, grant, [1, 2], ready=True, ahead={"items": unique([1, 2, 3])[0]})
            grant = session.ready()
        assert read_early == [3] and came == [(3, 8 + 2 * 12)] * 3
        session.done()


def test_other_keys_than_those_that_were_read_early_come_whole(came: list[tuple[int, int]]) -> None:
    with serving() as cluster, connect(cluster) as session:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        look_ahead(session, grant, [1, 2])
        push_one(session, grant, [1], ready=True, ahead={"items": unique([2, 3])[0]})
        grant = session.ready()
        assert grant is not None
        _, rows = session.pull(grant, rows={"items": [2, 3]})
        assert came == [] and np.array_equal(rows["items"], session.lookup("items", [2, 3])[0])
        session.done()


def test_nothing_is_read_early_from_a_server_that_shares_memory(
    came: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psworker.data.shard_client.ShardClient.read_early", None)
    with serving() as cluster, connect(cluster, transport="shared-memory") as session:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        look_ahead(session, grant, [1, 2])
        push_one(session, grant, [1], ready=True, ahead={"items": unique([1, 2])[0]})
        assert session.ready() is not None and came == []
        session.done()


def test_an_early_reading_that_fails_costs_nothing(
    came: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise SessionError("no rows today")

    monkeypatch.setattr("psworker.data.shard_client.ShardClient.read_early", failing)
    with serving() as cluster, connect(cluster) as session:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        look_ahead(session, grant, [1, 2])
        push_one(session, grant, [1], ready=True, ahead={"items": unique([1, 2])[0]})
        grant = session.ready()
        assert grant is not None
        _, rows = session.pull(grant, rows={"items": [1, 2]})
        assert came == [] and np.array_equal(rows["items"], session.lookup("items", [1, 2])[0])
        session.done()


def test_a_loop_that_waits_for_readings_does_without_some() -> None:
    """By a clock of its own: each reading takes 10 s, of which the loop waits for `late`."""
    now, loop = [0.0], threading.get_ident()
    read: list[int] = []
    going_on: list[threading.Event] = []

    def clock() -> float:
        found = now[0]
        if threading.get_ident() == loop and going_on:
            # The loop has seen that the reading has not ended, and will wait.
            going_on.pop().set()
        return found

    lookahead = Lookahead(clock)

    def batch(number: int, late: float) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def reading() -> None:
            read.append(number)
            begun.set()
            go_on.wait()
            now[0] += late

        lookahead.begin(reading)
        if not lookahead.ended:
            begun.wait()
            now[0] += 10 - late
            going_on.append(go_on)
        lookahead.settle()

    for number in range(16):
        batch(number, 9)
    assert read == [0, 2, 5, 10]
    # Three batches of the pause after that one are left.
    for number in range(16, 24):
        batch(number, 1)
    assert read[4:] == [19, 20, 21, 22, 23]
    lookahead.close()


@pytest.mark.parametrize("transport", ["grpc", "socket"])
def test_rows_of_a_version_are_named_only_beside_keys_and_a_ticket(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as cluster, connect(cluster, transport=transport, server_timeout=3) as session:
        grant = session.ready()
        assert grant is not None
        session.pull(grant)
        with monkeypatch.context() as patched:
            given = shard_pb2.PullRequest
            patched.setattr(shard_pb2, "PullRequest", lambda **more: given(**{**more, "rows_since": 1}))
            with pytest.raises(SessionError, match="rows_since"):
                session.lookup("items", [1, 2])
        with monkeypatch.context() as patched:
            patched.setattr("psworker.data.shard_client.since_of", lambda early: 1)
            with pytest.raises(SessionError, match="rows_since"):
                push_one(session, grant, [1])
        # The ticket is still good, and a version that is not there yet brings all rows.
        with monkeypatch.context() as patched:
            patched.setattr(
                "psworker.data.shard_client.since_of", lambda early: 0 if early is None else 2**40
            )
            look_ahead(session, grant, [2, 3])
            push_one(session, grant, [2], ready=True, ahead={"items": unique([2, 3])[0]})
        grant = session.ready()
        assert grant is not None
        _, rows = session.pull(grant, rows={"items": [2, 3]})
        assert np.array_equal(rows["items"], session.lookup("items", [2, 3])[0])
        session.done()


# Whole jobs


@pytest.mark.parametrize(
    "rules", [{}, {"admit_after": 2, "evict_age": 4, "evict_every": 2}], ids=["all", "some"]
)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("policy", ["sync", "async", "ssp"])
def test_a_run_that_looks_ahead_replays_to_the_bit(
    tmp_path: Path, came: list[tuple[int, int]], policy: str, servers: int, rules: dict[str, int]
) -> None:
    """Two workers in threads. A replay reads all rows of each version at once."""
    options = {"batches_per_epoch": 15, "vocabulary": 200}
    overrides = ["optimizer.name=adagrad", "optimizer.learning_rate=0.1"]

    def problem() -> Any:
        made = numpy_problem("clicks", options)
        made.tables = tuple(replace(spec, **rules) for spec in made.tables)
        return made

    with serving(servers, workers=2, policy=policy, out=tmp_path, overrides=overrides) as cluster:

        def work(index: int) -> None:
            trainer = problem()
            with psworker.connect(
                *(cluster.hosts, trainer.specs),
                task_index=index,
                tables=trainer.tables,
                transport=("grpc", "socket")[index],
            ) as session:
                trainer.attach(session.plan)
                train(session, trainer, 2, lambda *_: None)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for served in cluster.servers:
            served.ended()
    run = Run(tmp_path)
    replay = Replay(read_records(run), problem(), epochs=2)
    assert replay.run().first is None
    assert replay.store.sha256() == run.summary.weights_sha256
    assert check_run(run).ok
    assert came
