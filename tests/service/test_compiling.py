"""A server executes nothing before its loops are compiled, says that it compiles, and ends if it cannot."""

import gc
import logging
import threading
from collections.abc import Callable

import pytest

from psserver.options import Options
from psserver.service.runtime import freeze_gc
from psserver.service.store import host
from psserver.serving import resolved
from psserver.shard import Shard
from pswire.exits import ExitCode
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, serving, wait_until


@promise("A server that compiles says so, and executes nothing before it has compiled.")
@pytest.mark.parametrize("servers", [1, 2])
def test_nothing_is_executed_before_loops_are_compiled(
    servers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, loaded, compile_loops = threading.Event(), threading.Event(), Shard.compile

    def held(shard: Shard, stop: Callable[[], bool]) -> None:
        assert go_on.wait(PATIENCE)
        compile_loops(shard, stop)

    monkeypatch.setattr(Shard, "compile", held)
    monkeypatch.setattr(host, "COMPILES", 0.001)
    caplog.set_level(logging.INFO, "ps-server")
    with serving(servers, loaded=loaded.set) as cluster:
        before = cluster.status().servers[0].executed
        with Peer(cluster) as peer:
            # The server has decided to admit it, and could have executed that.
            assert cluster.status().servers[0].executed == before
            wait_until(lambda: "compiling the loops of this job" in caplog.text, "a line that says so")
            assert not loaded.is_set()
            go_on.set()
            assert peer.step().version == 1
            assert loaded.wait(PATIENCE)


def test_a_server_that_cannot_compile_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(shard: Shard, stop: Callable[[], bool]) -> None:
        raise ImportError("No module named 'numba'")

    monkeypatch.setattr(Shard, "compile", fails)
    with serving() as cluster:
        with Peer(cluster) as peer:
            assert "cannot compile" in peer.receive("stop").reason
        assert cluster.servers[0].ended() not in (None, ExitCode.OK)
    assert "server 0 cannot compile what this job computes with: No module named 'numba'" in caplog.text


def test_closing_does_not_wait_for_all_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def endless(shard: Shard, stop: Callable[[], bool]) -> None:
        pause = threading.Event()
        while not stop():
            pause.wait(0.01)
        stopped.set()

    monkeypatch.setattr(Shard, "compile", endless)
    with serving() as cluster:
        Peer(cluster)
        executed = cluster.servers[0].server.host.state.executed
    assert stopped.is_set()
    # Nor is anything executed then, by loops that are not compiled.
    assert cluster.servers[0].server.host.state.executed == executed


def test_a_server_process_leaves_what_stays_out_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    settings = resolved(Options(ps_hosts="127.0.0.1:0", task_index=0))
    assert settings.host.loaded is freeze_gc
    settings.host.loaded()
    assert frozen
