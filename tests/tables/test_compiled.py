"""Nothing is compiled on a server's event loop: also not where it restores rows."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psserver.checkpoint import Store
from psserver.decisions.orders import Apply, Fold, Hold, Install, Seal
from psserver.fast import compiler, ready, row_updates, rows
from psserver.optimizers import build, names
from psserver.replication import watch
from psserver.shard import Shard
from pswire.model.plan import make_plan
from pswire.transport import blocks, deltas
from tests.links import connect_link
from tests.promises import promise
from tests.service.replicated import made_anew, state_of
from tests.service.serving import PATIENCE, VARIABLES, serving, wait_until
from tests.tables.test_replicas import TABLES, train
from tests.tables.test_sessions import ALL, connect, saved, step


def on_a_loop() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Compilation:
    """What is compiled, as if this process had compiled nothing. `on_loop`: on the thread of an event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.on_loop: list[str] = []
        monkeypatch.setattr(compiler, "compile_loop", self._watched(compiler.compile_loop))
        monkeypatch.setattr(row_updates, "compile_update", self._watched(row_updates.compile_update))
        self._kernels = self._watched(rows.compiled.__wrapped__), self._watched(blocks.kernels.__wrapped__)
        self._monkeypatch = monkeypatch
        self.forget()

    def forget(self) -> None:
        """As in another process."""
        for name, empty in (("_loops", {}), ("_updates", {})):
            self._monkeypatch.setattr(ready, name, empty)
        of_rows, of_blocks = map(cache, self._kernels)
        self._monkeypatch.setattr(rows, "compiled", of_rows)
        for module in (blocks, deltas):
            self._monkeypatch.setattr(module, "kernels", of_blocks)

    def _watched(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any) -> Any:
            what = f"{make.__name__}{given}"
            self.seen.append(what)
            if on_a_loop():
                self.on_loop.append(what)
            return make(*given)

        return made


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> Compilation:
    return Compilation(monkeypatch)


@promise(
    "A server that compiles goes on to answer: it compiles beside what it serves, also where a job resumes."
)
@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_job_with_tables_that_resumes_compiles_beside_the_loop(
    compilation: Compilation, tmp_path: Path, servers: int, wire: str
) -> None:
    overrides = ["run.checkpoint_every=1 version", "optimizer.name=adagrad", "optimizer.learning_rate=0.5"]
    with serving(servers, out=tmp_path, shared=True, overrides=overrides) as cluster:
        with connect(cluster, wire_dtype=wire) as session:
            assert step(session, 1)
            wait_until(lambda: saved(Store(tmp_path / "checkpoints"), 1), "the version to be saved")
            before, _ = session.lookup("items", ALL)
    assert compilation.seen and not compilation.on_loop
    compilation.forget()
    with serving(servers, out=tmp_path, shared=True, resume="latest", overrides=overrides) as cluster:
        with connect(cluster, wire_dtype=wire) as session:
            grant = session.ready()
            assert grant is not None
            found, version = session.lookup("items", ALL)
            assert version >= 1 and np.array_equal(found, before)
            session.abandon(grant, "read only")
            assert step(session, 2)
    assert not compilation.on_loop


def test_a_copy_with_tables_compiles_before_it_is_restored_and_both_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Shard, bool]] = []

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def watching(shard: Shard, *given: Any, **more: Any) -> Any:
            beside = not on_a_loop()
            found = work(shard, *given, **more)
            done.append((name, shard, beside))
            return found

        return watching

    for name in ("compile", "restore"):
        monkeypatch.setattr(Shard, name, watched(name, getattr(Shard, name)))
    monkeypatch.setenv("PS_REPLICAS", "2")
    # On a busy machine nobody is to be taken for dead.
    monkeypatch.setattr(watch, "SILENCE", PATIENCE)
    overrides = ("cluster.replicas=2", "optimizer.name=adam")
    with serving(servers=3, out=tmp_path / "run", shared=True, overrides=overrides) as cluster:
        ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
        with connect_link(cluster.hosts, ones, name="w", tables=TABLES) as session:
            train(session, 3)
            cluster.servers[1].probe.leave_out()
            cluster.servers[1].ended()
            wait_until(lambda: state_of(cluster, 1) == "lost", "the loss")
            made_anew(cluster, tmp_path, 1)
            copy = cluster.servers[1].probe.shard
    assert [(name, beside) for name, shard, beside in done if shard is copy] == [
        ("compile", True),
        ("restore", True),
    ]


@pytest.mark.parametrize("optimizer", names())
def test_a_shard_compiles_all_that_it_runs(compilation: Compilation, optimizer: str) -> None:
    shard = Shard(make_plan(list(VARIABLES), 1), 0, build({"name": optimizer}))
    shard.compile()
    before = len(compilation.seen)
    assert before
    for ticket in range(1, 8):
        shard.execute(Hold(ticket, shard.version, initialise=ticket == 1, worker=f"w{ticket % 2}"))
        slot = shard.begin(ticket)
        shard.checks.copy_in(slot, np.ones(slot.values.size, np.float32), 0)
        shard.staging.finish(slot)
        shard.execute(Seal(ticket))
        if ticket == 1:
            shard.execute(Install(1))
        elif ticket % 2:
            apply = Apply(shard.version + 1, 0.5, 1.0, (Fold(ticket, 1.0),))
            shard.execute(apply)
            shard.narrow(np.ones(3, np.float32))
        else:
            shard.execute(Fold(ticket, 1.0))
    assert shard.version == 3 and len(compilation.seen) == before
