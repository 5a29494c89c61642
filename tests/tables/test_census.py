"""What `ps-lab status` says of a table equals what a pass over all its rows would find."""

from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from pslab.cli import cli
from pslab.commands import live
from pslab.display.tables import figures_of
from psserver.optimizers import build
from psserver.shard.tables import Tables
from psserver.shard.tables.census import Census
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.table_figures import HOTTEST, TableFigures, together
from pswire.model.tables import TableSpec, bucket, mix, unmix
from pswire.table_messages import table_from_wire, table_to_wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2
from tests.promises import promise
from tests.replay.simulated import simulate

SPEC = TableSpec("items", 2, "zeros", (), evict_age=40, evict_every=16)


def skewed(dice: np.random.Generator) -> np.ndarray:
    return np.unique(np.minimum(dice.zipf(1.3, size=30), 400))


def number_of(id: int) -> int:
    """Return the bucket of an id."""
    return int(bucket(mix(np.array([id])))[0])


@promise("What ps-lab status says of tables is what a pass over all rows finds.")
@pytest.mark.parametrize("servers", [1, 3])
def test_figures_are_those_of_a_pass_over_all_rows(servers: int) -> None:
    plan = make_plan([VariableSpec("bias", (servers,))], servers, [SPEC])
    parts = [Tables(plan, server, build({"name": "sgd", "learning_rate": 0.1})) for server in range(servers)]
    dice = np.random.default_rng(5)
    counts, touched, made, evicted, changed = Counter[int](), {}, 0, 0, list[set[int]]()
    behind, read = 0, 0
    # Gradients of version v are applied two versions later.
    open_: deque[tuple[int, int, np.ndarray]] = deque()
    for version in range(100):
        for part in parts:
            part.hold(version)
        open_.append((version + 1, version, skewed(dice)))
        if len(open_) < 3 and version < 2:
            changed.append(set())
            ids, ticket, base = np.zeros(0, np.int64), 0, version
        else:
            ticket, base, ids = open_.popleft()
        keys = np.sort(mix(ids))
        for part in parts:
            own = keys[(keys >> np.uint64(52) >= part.start) & (keys >> np.uint64(52) < part.stop)]
            part.add([(own, np.ones((own.size, 2), np.float32))], 1.0, base)
            assert not part.advance(1.0, 1.0)[1]
            if ticket:
                part.release(base)
            part.committed(open_[0][1] if open_ else version)
        now = version + 1
        if now % 7 == 0 and ticket:
            read += ids.size
            behind += sum(i in step for i in ids.tolist() for step in changed[base:version])
        made += sum(i not in counts for i in ids.tolist())
        counts.update(ids.tolist())
        touched |= dict.fromkeys(ids.tolist(), now)
        if version >= 2:
            changed.append(set(ids.tolist()))
        # A bucket's rows may go once in 16 versions.
        gone = [i for i in counts if touched[i] <= now - 40 and number_of(i) % 64 // 4 == now % 16]
        evicted += len(gone)
        for i in gone:
            del counts[i], touched[i]
    (found,) = together(table for part in parts for table in part.figures())
    assert (found.rows, found.updates) == (len(counts), counts.total())
    assert (found.made, found.evicted, found.versions) == (made, evicted, 100) and evicted
    assert (found.newest, found.touched) == (len(changed[-1]), sum(map(len, changed)))
    assert (found.read, found.behind) == (read, behind) and behind
    assert sorted(dict(found.hot).values(), reverse=True) == [n for _, n in counts.most_common(HOTTEST)]
    assert all(counts[i] == n for i, n in found.hot)
    level = Counter(n.bit_length() - 1 for n in counts.values())
    assert [rows for rows, _ in found.levels] == [level[k] for k in range(max(level) + 1)]
    # The most frequent hundredth of rows has at most what the levels say, and not much less.
    assert found.unique == len(counts) / counts.total() and 0.05 < found.skew < 1
    assert table_from_wire(table_to_wire(found)) == found == TableFigures.from_json(found.to_json())


def test_the_hottest_rows_of_a_large_checkpoint_are_found_wherever_they_are() -> None:
    ids = np.arange(600_000)
    keys = np.sort(mix(ids))
    counts = np.ones(keys.size, np.uint32)
    places = np.linspace(0, keys.size - 1, HOTTEST).astype(int)
    counts[places] = 5 + np.arange(HOTTEST)
    census = Census()
    census.took_up(keys, counts)
    expected = zip(unmix(keys[places[::-1]]).tolist(), counts[places[::-1]].tolist(), strict=True)
    assert census.figures(SPEC, keys.size, 0, 0).hot == tuple(expected)


def test_what_a_checkpoint_restores_is_counted() -> None:
    plan = make_plan([VariableSpec("bias", (1,))], 1, [SPEC])
    before, after = (Tables(plan, 0, build({"name": "sgd", "learning_rate": 0.1})) for _ in range(2))
    keys = np.sort(mix(np.arange(20)))
    for step in range(1, 4):
        before.add([(keys[::step].copy(), np.ones((keys[::step].size, 2), np.float32))], 1.0, 0)
        assert not before.advance(1.0, 1.0)[1]
        before.committed(0)
    after.restore(before.rows_saved(), [], 3, {})
    (old,), (new,) = before.figures(), after.figures()
    assert (new.rows, new.levels, new.hot) == (old.rows, old.levels, old.hot) and new.made == 0


def test_tables_of_a_finished_run_and_of_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(
        tmp_path / "run",
        "async",
        run={"versions": 60},
        simulation={"problem": "clicks", "options": {"features": 2, "vocabulary": 60}},
    )
    found = list(run.summary.tables)
    assert found and all(table.staleness > 0 for table in found)
    servers = [pb.ServerStatus(memory=memory_pb2.Memory(tables=map(table_to_wire, found)))] * 2
    reply = pb.StatusReply(servers=servers)
    twice = figures_of(reply)
    assert [table.rows for table in twice] == [2 * table.rows for table in found]
    assert [table.versions for table in twice] == [60, 60]
    monkeypatch.setattr(
        live, "status_client", lambda *_, **__: SimpleNamespace(ask=lambda: reply, close=lambda: None)
    )
    shown = CliRunner().invoke(cli, ["status", "127.0.0.1:1"])
    assert shown.exit_code == 0 and "with the most updates" in shown.output and found[0].name in shown.output
    compared = CliRunner().invoke(cli, ["compare", str(run.path)])
    assert found[0].name in compared.output and "per version" in compared.output
