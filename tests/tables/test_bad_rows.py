"""Rows of a hostile or broken worker: refused, and nothing changes."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from pswire.model.plan import VariableSpec
from pswire.model.rows import Rows, WantedRows
from pswire.model.tables import TableSpec, mix, split
from pswire.transport.codecs import FLOAT32
from pswire.transport.rows import RowFormat
from pswire.v1 import shard_pb2
from psworker.errors import PayloadRefused, SessionError
from psworker.link import Link
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import Cluster, granted, serving, wait_until

SPEC = TableSpec("items", 3)
VARIABLES = [(VariableSpec("bias", (2,)), np.zeros(2, np.float32))]
KEYS = np.sort(mix(np.arange(50)))
Bent = Callable[[Any, list[np.ndarray]], list[np.ndarray]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with serving(servers=2, memory_limit=64 << 20, overrides=["cluster.worker_timeout=1"]) as served:
        yield served


def connected(cluster: Cluster, transport: str) -> Link:
    return connect_link(cluster.hosts, VARIABLES, tables=[SPEC], transport=transport, server_timeout=5)


def bend(monkeypatch: pytest.MonkeyPatch, bent: Bent) -> None:
    """Change the bytes of rows on their way."""
    encode = RowFormat.encode

    def changed(form: Any, rows: Rows, ahead: WantedRows) -> list[np.ndarray]:
        found = encode(form, rows, ahead)
        return bent(form, [array.copy() for array in found]) if found else found

    monkeypatch.setattr(RowFormat, "encode", changed)


def _swapped(form: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0][[0, 1]] = arrays[0][[1, 0]]
    return arrays


def _twice(form: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0][1] = arrays[0][0]
    return arrays


def _anothers(form: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    # Each server is sent keys of the other one's buckets.
    arrays[0] ^= np.uint64(1 << 63)
    return arrays


def _infinite(form: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[1][4] = np.inf
    return arrays


BENT = {"unsorted": _swapped, "twice": _twice, "another server's": _anothers, "infinite": _infinite}


@promise(
    "Rows of tables harm nobody: keys that are unsorted, repeated, another server's or too many, and gradients"
    " that are not finite, are refused before anything changes; ids without end do not fill a server."
)
@pytest.mark.parametrize(
    ("bent", "transport"), [*zip(BENT.values(), ["grpc", "socket", "auto", "grpc"], strict=True)], ids=BENT
)
def test_keys_and_rows_that_make_no_sense_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, bent: Bent, transport: str
) -> None:
    with connected(cluster, transport) as session:
        grant = granted(session)
        before = cluster.picture()
        with monkeypatch.context() as patched:
            bend(patched, bent)
            with pytest.raises(PayloadRefused):
                session.push_flat(grant, session.plan.scatter([np.ones(2)]), {"items": (KEYS, _rows(50))})
        assert cluster.picture() == before
        assert not any(table.count for each in cluster.servers for table in each.probe.shard.tables.tables)
        # The ticket is still good.
        session.push_flat(grant, session.plan.scatter([np.ones(2)]), {"items": (KEYS, _rows(50))})
        session.commit(grant, samples=1)
        assert session.ready() is not None


def test_keys_to_read_that_make_no_sense_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(cluster, "grpc") as session:
        grant = granted(session)
        for bent in (_swapped, _twice, _anothers):
            with monkeypatch.context() as patched:
                bend(patched, bent)
                with pytest.raises(SessionError):
                    session.pull_rows(grant, {"items": KEYS})
        assert session.pull_rows(grant, {"items": KEYS})["items"].shape == (50, 3)


@pytest.mark.parametrize(
    "counts",
    [[3, 3], [4], [2**28]],
    ids=["another number of tables", "too many", "beyond memory"],
)
def test_numbers_of_rows_that_do_not_fit_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    """A stream that is broken off half-way costs the worker its call, and the server nothing."""
    keys = KEYS[split(KEYS, 2)[0]][:3]
    monkeypatch.setattr("psserver.service.net.pushes.CHUNK_SECONDS", 1)
    with connected(cluster, "grpc") as session:
        grant = granted(session)
        with monkeypatch.context() as patched:
            patched.setattr("psworker.data.member.counts_of", lambda keys: counts)
            with pytest.raises(SessionError):
                session.push_flat(grant, session.plan.scatter([np.ones(2)]), {"items": (keys, _rows(3))})
        assert cluster.servers[0].probe.shard.tables.tables[0].count == 0
        assert not cluster.servers[0].probe.host.memory.reserved


def test_new_rows_count_towards_the_limit_of_memory() -> None:
    wide = TableSpec("wide", 256)
    with (
        serving(memory_limit=24 << 20) as served,
        connect_link(served.hosts, VARIABLES, tables=[wide], server_timeout=5) as session,
    ):
        made = 0
        with pytest.raises(SessionError, match="memory"):
            while made < 1_000_000:
                grant = granted(session)
                ids = np.arange(made, made + 1_000)
                session.push(grant, {}, rows={"wide": (ids, np.ones((ids.size, 256)))})
                session.commit(grant, samples=1)
                made += ids.size
        tables = served.servers[0].probe.shard.tables
        assert tables.tables[0].count == made > 5_000
        held = served.servers[0].probe.host.memory.parts()
        assert held["rows of tables"] == tables.nbytes >= made * 4 * 256
        # Rows that are there can still be updated.
        assert grant is not None
        session.push(grant, {}, rows={"wide": (np.arange(100), np.ones((100, 256)))})
        session.commit(grant, samples=1)


def test_few_keys_that_ask_for_large_rows_are_held_to_the_readers_memory() -> None:
    wide = TableSpec("wide", 4096)
    with (
        serving(memory_limit=24 << 20) as served,
        connect_link(served.hosts, VARIABLES, tables=[wide], server_timeout=5, transport="grpc") as session,
    ):
        grant = granted(session)
        for read in (
            lambda count: session.lookup("wide", np.arange(count))[0],
            lambda count: session.pull(grant, rows={"wide": np.arange(count)})[1]["wide"],
        ):
            with pytest.raises(SessionError, match="no memory for rows"):
                read(5_000)
            assert read(50).shape == (50, 4096)
            wait_until(
                lambda: not served.servers[0].probe.host.memory.reserved, "the memory to be given back"
            )


@promise("Bytes per row: 8 + 4 dim up, 8 up and 4 dim down; one round trip for each step.")
def test_rows_take_the_bytes_that_they_must() -> None:
    """8 + 4 dim up for each unique row, 8 up and 4 dim down for each one that is read."""
    form = RowFormat((SPEC,), FLOAT32, (50,), (40,))
    arrays = form.encode([(KEYS, _rows(50))], (KEYS[:40],))
    assert sum(array.nbytes for array in arrays) == form.nbytes == 50 * (8 + 12) + 40 * 8
    answer = RowFormat((SPEC,), FLOAT32, (40,))
    assert sum(array.nbytes for array in answer.encode_answer([_rows(40)])) == 40 * 12


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)


def test_a_pull_by_its_own_call_reads_no_rows(cluster: Cluster) -> None:
    request = shard_pb2.PullRequest(job="x", rows=[1])
    with pytest.raises(grpc.RpcError):
        list(cluster.shards[0].Pull(request, timeout=20))


def test_a_large_payload_that_waits_keeps_out_no_small_one() -> None:
    wide = TableSpec("wide", 256)
    with (
        serving(memory_limit=24 << 20) as served,
        connect_link(served.hosts, VARIABLES, name="a", tables=[wide]) as greedy,
        connect_link(served.hosts, VARIABLES, name="b", tables=[wide]) as honest,
    ):
        grant, memory = granted(greedy), served.servers[0].probe.host.memory
        [table] = served.servers[0].probe.shard.tables.tables
        most = (memory.limit - memory.total) // (table.row_bytes + table.update_bytes)
        large = np.arange(most * 95 // 100)
        greedy.push(grant, {}, rows={"wide": (large, np.ones((large.size, 256)))})
        small = granted(honest)
        honest.push(small, {}, rows={"wide": (np.arange(8), np.ones((8, 256)))})
        honest.commit(small, samples=1)
