"""Whoever has loops compiled hears when that is over; a server then spares itself the search through them."""

import gc
import threading
from typing import Any

import pytest

from psserver.fast import FastBackend
from psserver.options import Options
from psserver.service.net.loop import freeze_gc
from psserver.serving import resolved
from psserver.shard import arithmetic


@pytest.mark.parametrize("fails", [False, True])
def test_loaded_is_called_once_behind_the_last_loop(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    compiled: list[Any] = []

    def compile_loop(loop: Any, variant: str) -> Any:
        if fails:
            raise RuntimeError("no")
        compiled.append(loop)

    monkeypatch.setattr("psserver.fast.compiler.compile_loop", compile_loop)
    loaded, seen = threading.Event(), []
    wanted = [(loop, loop.letters) for loop in arithmetic.LOOPS]
    with FastBackend(loaded=lambda: (seen.append(len(compiled)), loaded.set())) as backend:
        backend.prepare(wanted)
        assert loaded.wait(30)
    assert seen == [0 if fails else len(wanted)]


def test_a_server_process_leaves_what_stays_out_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    settings = resolved(Options(ps_hosts="127.0.0.1:0", task_index=0))
    assert settings.host.loaded is freeze_gc
    settings.host.loaded()
    assert frozen
