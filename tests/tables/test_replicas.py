"""Two copies of a job with tables: each executes the same rows, gets them with a copy, and shows where they differ."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from psserver.decisions.orders import Hold, Seal
from psserver.optimizers import build
from psserver.service.guard.memory import Memory
from psserver.service.life.replicating import LOG_SHARE
from psserver.service.replicas import giving, holding, payloads
from psserver.service.replicas.comparing import Comparing
from psserver.shard import Shard
from psserver.shard.tables import Table, TableState, digest
from pswire.model.plan import make_plan
from pswire.model.rows import Rows
from pswire.model.tables import TableSpec, mix
from psworker.engine import Grant
from psworker.link import Link
from tests.asking import ask
from tests.links import connect_link
from tests.promises import promise
from tests.service.replicated import made_anew, newest, state_of
from tests.service.serving import VARIABLES, Cluster, Served, granted, serving, wait_until
from tests.tables import twin
from tests.tables.test_row_files import RULES, plan, update

# Rows of the first come and go; those of the second are admitted by chance, under a rule of their own.
AGED = TableSpec("aged", 2, "uniform", (-1.0, 1.0), 5, evict_age=3, evict_every=1)
CHANCE = TableSpec(
    "chance",
    3,
    "normal",
    (0.0, 0.5),
    6,
    admit=0.5,
    optimizer='{"learning_rate":0.1,"name":"rowwise-adagrad"}',
)
TABLES = (AGED, CHANCE)


# A payload


def shard() -> Shard:
    return Shard(make_plan(list(VARIABLES), 1, TABLES), 0, build(RULES[0]))


def rows(*sizes: int) -> Rows:
    dice = np.random.default_rng(3)
    found = []
    for spec, size in zip(TABLES, sizes, strict=True):
        keys = np.sort(mix(np.arange(size)))
        found.append((keys, dice.normal(size=(size, spec.dim)).astype(np.float32)))
    return found


@pytest.mark.parametrize("pushed", [rows(5, 3), rows(0, 4), ()], ids=["rows", "of one table", "none"])
def test_rows_are_staged_on_the_copy_as_they_were_pushed(pushed: Rows) -> None:
    primary, follower = shard(), shard()
    for each in (primary, follower):
        each.execute(Hold(7, -1, initialise=True, worker="w"))
    slot = primary.begin(7)
    slot.values[...] = np.arange(slot.values.size)
    slot.rows, slot.squares = pushed, 0.1
    primary.staging.finish(slot)
    body = memoryview(b"".join(payloads.encode(slot)))
    payloads.stage(follower, body)
    staged, other = primary.state(), follower.state()
    assert staged.arrays.keys() == other.arrays.keys()
    assert all(np.array_equal(staged.arrays[name], other.arrays[name]) for name in staged.arrays)
    assert follower.staging.squares(7) == 0.1
    # A worker that sends it again, to whoever leads now, sends the same.
    again = follower.begin(7)
    again.values[...], again.rows = slot.values, pushed
    assert follower.staging.finish(again)
    # One whose ticket takes none any more is left out.
    follower.execute(Seal(7))
    payloads.stage(follower, body)


# Digests


def table() -> Table:
    """30 rows."""
    found = twin.table({"name": "adagrad", "learning_rate": 0.5}, AGED)
    for seed in range(2):
        twin.update(found, twin.gradient(list(range(30)), seed, dim=2))
    return found


def restored(other: Table, change: Callable[[TableState], object] = lambda _: None) -> Table:
    """A copy of a table, after a change of what it is made from."""
    found, state = twin.table({"name": "adagrad", "learning_rate": 0.5}, AGED), other.state()
    change(state)
    found.restore(state, other.version)
    return found


@pytest.mark.parametrize("looked_at", [digest.ROWS, 4])
def test_a_row_that_differs_shows_in_one_of_the_digests_that_take_turns(
    monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    monkeypatch.setattr(digest, "ROWS", looked_at)
    own = table()
    turns = digest.turns(own)
    assert turns == (8 if looked_at == 4 else 1)
    equal = restored(own)
    assert all(digest.digest_of(own, n) == digest.digest_of(equal, n + turns) for n in range(turns))
    for row in range(own.count):

        def flipped(state: TableState, row: int = row) -> None:
            state.values.view(np.uint32)[row, 0] ^= 1

        other = restored(own, flipped)
        assert [digest.digest_of(own, n) != digest.digest_of(other, n) for n in range(turns)].count(True) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.slots["accumulator"].__setitem__((3, 1), 9.0),
        lambda state: state.touched.__setitem__(3, 1),
        lambda state: state.count.__setitem__(3, 9),
    ],
    ids=["slot", "last update", "updates"],
)
def test_a_digest_covers_all_that_a_later_update_depends_on(change: Callable[..., object]) -> None:
    own = table()
    assert digest.digest_of(own, 0) == digest.digest_of(restored(own), 0)
    assert digest.digest_of(own, 0) != digest.digest_of(restored(own, change), 0)


def test_a_row_too_many_shows_in_every_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "ROWS", 4)
    own, other = table(), table()
    for each, ids in ((own, [1]), (other, [1000])):
        twin.update(each, twin.gradient(ids, 7, dim=2))
    assert other.count == own.count + 1 and digest.turns(own) == digest.turns(other) == 8
    assert all(digest.digest_of(own, turn) != digest.digest_of(other, turn) for turn in range(8))


# A copy for a server


@pytest.mark.parametrize("large", [False, True])
def test_updates_go_on_while_rows_are_copied_for_a_server(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    monkeypatch.setattr(giving, "LARGE_PASS", 0 if large else 1 << 20)
    shard = Shard(plan(RULES[0]), 0, build(RULES[0]))
    update(shard.tables, list(range(20)), 1)
    before, threads = shard.tables.rows_saved(), []

    async def captured() -> Any:
        async def on_pool(work: Callable[[], Any]) -> Any:
            threads.append(work)
            return work()

        def submit(orders: Any) -> None:
            for _, asked in orders:
                asked.answer(asked.look(shard))

        orders = SimpleNamespace(
            submit=submit,
            execute_submitted=lambda: None,
            hold_writes=lambda: None,
            # The write that has waited.
            copied=lambda: update(shard.tables, [1, 2, 50], 2),
        )
        host: Any = SimpleNamespace(
            state=SimpleNamespace(shard=shard),
            runtime=SimpleNamespace(loop=asyncio.get_running_loop(), passes=SimpleNamespace(on_pool=on_pool)),
            memory=Memory(1 << 30, 3),
            orders=orders,
        )
        capture = giving.Capture(giving.Given(host, 1, dict))
        _, arrays = await capture.copy(near=False)
        capture.close()
        assert not host.memory.reserved
        return arrays

    arrays = asyncio.run(captured())
    assert len(threads) == (2 if large else 0) and shard.tables.tables[0].count == 21
    assert all(np.array_equal(arrays[name], values) for name, values in before.items())
    # Nothing more is saved for it.
    update(shard.tables, [3], 3)
    assert not any(table.saved_bytes for table in shard.tables.tables)


# Three servers


@pytest.fixture
def three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[Cluster, Link]]:
    """Copies are compared at every second version. A worker has made six. The parameter: a policy; by default async."""
    monkeypatch.setenv("PS_REPLICAS", "2")
    monkeypatch.setattr(holding, "Comparing", partial(Comparing, every=2))
    overrides = ("cluster.replicas=2", "optimizer.name=adam")
    policy = getattr(request, "param", "async")
    with serving(servers=3, out=tmp_path / "run", shared=True, overrides=overrides, policy=policy) as cluster:
        ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
        session = connect_link(cluster.hosts, ones, name="w", tables=TABLES)
        train(session, 6)
        yield cluster, session
        session.close()


def train(session: Link, steps: int) -> None:
    """Each step has some ids that are new, and some that were there before."""
    for _ in range(steps):
        step(session, granted(session))


def step(session: Link, grant: Grant) -> None:
    """Of one ticket."""
    ids = {spec.name: np.arange(grant.version, grant.version + 6) for spec in TABLES}
    _, found = session.pull(grant, rows=ids)
    gradients = {spec.name: np.full(spec.shape, 0.125) for spec in VARIABLES if spec.kind == "trainable"}
    moved = {spec.name: np.zeros(spec.shape) for spec in VARIABLES if spec.kind == "state"}
    pushed = {name: (ids[name], found[name] + 1.0) for name in ids}
    session.push(grant, gradients | moved, rows=pushed)
    session.commit(grant, samples=1, loss=0.5)


def rows_in(served: Served) -> dict[str, bytes]:
    """All that the tables have, with their version."""

    def read() -> dict[str, bytes]:
        shard = served.server.host.state.shard
        assert shard is not None
        saved = shard.tables.rows_saved()
        return {"version": bytes([shard.version]), **{name: each.tobytes() for name, each in saved.items()}}

    return ask(served.server.runtime, read)


def both_made(version: int, *servers: Served) -> None:
    """Wait for the last version on each of the servers."""
    wait_until(lambda: all(newest(each)[0] == version for each in servers), f"version {version}")


@promise("Both copies of a job with replicas have the same rows; one that differs in a row is noticed.")
def test_both_copies_have_the_same_rows_and_one_that_ended_gets_them(
    three: tuple[Cluster, Link], tmp_path: Path
) -> None:
    cluster, session = three
    first, second, _ = cluster.servers
    both_made(6, first, second)
    assert rows_in(first) == rows_in(second)
    assert all(rows_in(first)[f"{name}/keys"] for name in ("table/0", "table/1"))
    shard = first.server.host.state.shard
    assert shard is not None and {each.evictions > 0 for each in shard.tables.tables} == {True, False}
    second.probe.leave_out()
    second.ended()
    wait_until(lambda: state_of(cluster, 1) == "lost", "the loss")
    train(session, 3)
    made_anew(cluster, tmp_path, 1)
    both_made(9, first, cluster.servers[1])
    assert rows_in(first) == rows_in(cluster.servers[1])
    train(session, 5)
    both_made(14, first, cluster.servers[1])
    assert rows_in(first) == rows_in(cluster.servers[1])
    for served in cluster.servers[:2]:
        host = served.server.host
        # The log's, and what a worker shares.
        assert host.memory.reserved <= int(LOG_SHARE * host.memory.limit) + host.nbytes


@pytest.mark.parametrize("three", ["dc-asgd"], indirect=True)
def test_a_copy_gets_what_rows_were_when_an_open_ticket_began(
    three: tuple[Cluster, Link], tmp_path: Path
) -> None:
    cluster, session = three
    first, second, _ = cluster.servers
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    slow = connect_link(cluster.hosts, ones, name="slow", tables=TABLES)
    grant = granted(slow)
    train(session, 3)
    second.probe.leave_out()
    second.ended()
    wait_until(lambda: state_of(cluster, 1) == "lost", "the loss")
    made_anew(cluster, tmp_path, 1, "dc-asgd")
    train(session, 2)
    step(slow, grant)
    slow.close()
    both_made(12, first, cluster.servers[1])
    assert rows_in(first) == rows_in(cluster.servers[1])


def test_a_copy_with_another_row_counts_no_more(
    three: tuple[Cluster, Link], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, session = three
    first, second, _ = cluster.servers
    both_made(6, first, second)

    def flip() -> None:
        shard = second.server.host.state.shard
        assert shard is not None
        chance = shard.tables.tables[1]
        keys = chance.state().keys
        slots = chance.find(keys[:1])
        rows = chance.store.whole(slots)
        chance.store.write(slots, rows.values + np.float32(1.0), rows)

    ask(second.server.runtime, flip)
    train(session, 4)
    assert second.ended() is not None
    (told,) = [each for each in caplog.records if "copy counts no more" in each.message]
    assert "differs from this server's, first in table chance:" in told.message
    assert "one copy is left" in cluster.status().note
