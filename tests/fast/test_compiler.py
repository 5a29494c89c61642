"""Compiled code: kept between starts, found without a writable package, and never missed when absent."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from psserver.fast import FastBackend
from psserver.fast import compiler as jit
from psserver.optimizers import Loop, build, loop
from psserver.shard.arithmetic import fold_loop
from tests.patience import PATIENCE
from tests.probes import compiled_loops, is_closing

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import json, sys, logging
logging.basicConfig(level=logging.INFO)
from psserver.fast import FastBackend
from psserver.fast.compiler import numba
from psserver.optimizers import build
optimizer = build({"name": "sgd"})
with FastBackend() as backend:
    backend.prepare([optimizer.variant()])
    ready = backend.wait_ready()
    (compiled,) = backend._compiled.values()
    print(json.dumps({"ready": ready, "hits": sum(compiled.stats.cache_hits.values())}))
"""


def load(root: Path, **environment: str) -> tuple[dict[str, object], str]:
    """What a fresh process says about loading one loop; variables that point to caches are as given."""
    clean = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", LOAD],
        cwd=root,
        env=clean | {"PYTHONPATH": str(root)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said, done.stderr


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A copy of the package beside whose files nothing can be written (not even by root)."""
    root = tmp_path / "installed"
    for package in ("psserver", "pswire"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [root / "psserver", *(p for p in (root / "psserver").rglob("*") if p.is_dir())]:
        (folder / "__pycache__").write_text("a file where a folder is wanted")
    return root


def test_a_read_only_package_keeps_its_code_in_the_users_cache(sealed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert load(sealed, HOME=str(home), XDG_CACHE_HOME=str(home / ".cache"))[0]["hits"] == 0
    assert list((home / ".cache").rglob("*.nbc"))
    assert load(sealed, HOME=str(home), XDG_CACHE_HOME=str(home / ".cache"))[0]["hits"] == 1


def test_without_any_place_for_a_cache_it_compiles_all_the_same(sealed: Path) -> None:
    said, log = load(sealed, HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache")
    assert said == {"ready": True, "hits": 0}
    assert "compiled code is not kept" in log


def test_the_gil_is_released() -> None:
    assert jit.compile_loop(fold_loop, fold_loop.letters).targetoptions["nogil"] is True  # type: ignore[attr-defined]


def update(backend: FastBackend) -> np.ndarray:
    out = np.empty(5, np.float32)
    build({"name": "sgd"}).update(
        np.ones(5, np.float32), np.ones(5, np.float32), out, {}, version=0, lr_scale=1.0, backend=backend
    )
    return out


def test_numpy_runs_where_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "psserver.fast.compiler")
    with FastBackend() as backend:
        backend.prepare([fold_variant()])
        assert not backend.wait_ready()
        assert backend.reason is not None
        assert "numba is not installed" in backend.reason
        np.testing.assert_array_equal(update(backend), np.float32(1) - np.float32(0.01))


def fold_variant() -> tuple[Loop, str]:
    return fold_loop, fold_loop.letters


@loop("ww")
def wrong(x: np.ndarray, y: np.ndarray) -> None:
    x.no_such_attribute(y)  # type: ignore[attr-defined]


def test_a_loop_that_does_not_compile_is_reported_and_the_others_are_compiled() -> None:
    with FastBackend() as backend:
        backend.prepare([(wrong, "ww"), build({"name": "sgd"}).variant()])
        assert not backend.wait_ready()
        assert backend.reason is not None
        assert "wrong does not compile" in backend.reason
        assert len(compiled_loops(backend)) == 1
        assert update(backend).size == 5


def test_closing_does_not_wait_for_all_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on, compiled = threading.Event(), threading.Event(), []

    def slow(loop: Loop, variant: str) -> object:
        compiled.append(loop)
        started.set()
        assert go_on.wait(PATIENCE)
        return loop.function

    monkeypatch.setattr(jit, "compile_loop", slow)
    backend = FastBackend()
    backend.prepare([fold_variant()] * 100)
    assert started.wait(PATIENCE)
    closer = threading.Thread(target=backend.close)
    closer.start()
    while not is_closing(backend):
        closer.join(0.01)
    go_on.set()
    closer.join(PATIENCE)
    assert len(compiled) == 1


def test_starting_up_loads_no_compiler() -> None:
    code = "import psserver.cli, psserver.fast, sys; print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_loop_counts_its_arguments() -> None:
    assert fold_loop.variant([0, 0, 0, None]) == "wrf-"
    with pytest.raises(TypeError, match="fold_loop takes 4 arguments, got 3"):
        fold_loop.variant([0, 0, 0])
