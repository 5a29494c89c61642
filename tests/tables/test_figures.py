"""What `ps-lab status` says of a table equals what a pass over all its rows would find."""

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
from psserver.table_figures import TableFigures, together
from psserver.table_messages import table_from_wire, table_to_wire
from pswire.model.plan import VariableSpec, make_plan
from pswire.model.tables import TableSpec, bucket, mix
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2
from tests.promises import promise
from tests.replay.simulated import simulate

SPEC = TableSpec("items", 2, "zeros", (), evict_age=40, evict_every=16)


def number_of(id: int) -> int:
    """Return the bucket of an id."""
    return int(bucket(mix(np.array([id])))[0])


@promise("What ps-lab status says of tables is what a pass over all rows finds.")
@pytest.mark.parametrize("servers", [1, 3])
def test_figures_are_those_of_a_pass_over_all_rows(servers: int) -> None:
    plan = make_plan([VariableSpec("bias", (servers,))], servers, [SPEC])
    parts = [Tables(plan, server, build({"name": "sgd", "learning_rate": 0.1})) for server in range(servers)]
    dice = np.random.default_rng(5)
    touched, evicted = dict[int, int](), 0
    for now in range(1, 101):
        ids = np.unique(np.minimum(dice.zipf(1.3, size=30), 400))
        keys = np.sort(mix(ids))
        for part in parts:
            own = keys[(keys >> np.uint64(52) >= part.start) & (keys >> np.uint64(52) < part.stop)]
            part.add([(own, np.ones((own.size, 2), np.float32))], 1.0, now - 1)
            assert not part.advance(1.0, 1.0)[1]
            part.committed()
        touched |= dict.fromkeys(ids.tolist(), now)
        # A bucket's rows may go once in 16 versions.
        gone = [i for i in touched if touched[i] <= now - 40 and number_of(i) % 64 // 4 == now % 16]
        evicted += len(gone)
        for i in gone:
            del touched[i]
    (found,) = together(table for part in parts for table in part.figures())
    assert (
        found.rows == len(touched)
        and evicted
        and found.nbytes == sum(part.figures()[0].nbytes for part in parts)
    )
    assert table_from_wire(table_to_wire(found)) == found == TableFigures.from_json(found.to_json())


def test_tables_of_a_finished_run_and_of_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulate(
        tmp_path / "run",
        "async",
        run={"versions": 60},
        simulation={"problem": "clicks", "options": {"features": 2, "vocabulary": 60}},
    )
    found = list(run.summary.tables)
    servers = [pb.ServerStatus(memory=memory_pb2.Memory(tables=map(table_to_wire, found)))] * 2
    reply = pb.StatusReply(servers=servers)
    twice = figures_of(reply)
    assert found and [table.rows for table in twice] == [2 * table.rows for table in found]
    monkeypatch.setattr(
        live, "status_client", lambda *_, **__: SimpleNamespace(ask=lambda: reply, close=lambda: None)
    )
    shown = CliRunner().invoke(cli, ["status", "127.0.0.1:1"])
    assert shown.exit_code == 0 and found[0].name in shown.output
    compared = CliRunner().invoke(cli, ["compare", str(run.path)])
    assert found[0].name in compared.output and "MiB" in compared.output
