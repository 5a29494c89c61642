"""Compiled code: kept between starts, found without a writable package, compiled in memory where nothing is kept."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from psserver.fast import Variant, loop, prepare, ready
from psserver.fast.ready import loop_of
from psserver.shard.arithmetic import LOOPS, fold_loop
from pswire import compiled
from tests.promises import promise

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import json
from psserver.fast import not_kept, prepare, ready
from psserver.optimizers import build
prepare(build({"name": "sgd"}).variants())
(compiled,) = ready._loops.values()
print(json.dumps({"hits": sum(compiled.stats.cache_hits.values()), "kept": not not_kept()}))
"""


def load(root: Path, **environment: str) -> dict[str, object]:
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
    return said


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
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    assert load(sealed, **places) == {"hits": 0, "kept": True}
    assert list((home / ".cache").rglob("*.nbc"))
    assert load(sealed, **places) == {"hits": 1, "kept": True}
    for kept in (home / ".cache").rglob("*.nbc"):
        kept.write_bytes(b"damaged")
    assert load(sealed, **places)["hits"] == 0


@promise("Where nothing can be written, a server compiles in memory.")
def test_without_any_place_for_a_cache_it_compiles_all_the_same(sealed: Path) -> None:
    assert load(sealed, HOME="/dev/null", XDG_CACHE_HOME="/dev/null/cache") == {"hits": 0, "kept": False}


def test_the_gil_is_released() -> None:
    assert loop_of((fold_loop, fold_loop.letters)).targetoptions["nogil"] is True


@loop("ww")
def wrong(x: np.ndarray, y: np.ndarray) -> None:
    x.no_such_attribute(y)  # type: ignore[attr-defined]


def test_a_loop_that_does_not_compile_says_why() -> None:
    with pytest.raises(Exception, match="no_such_attribute"):
        prepare([(wrong, "ww")])


def test_what_nobody_wants_any_more_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Variant] = []
    monkeypatch.setattr(ready, "loop_of", compiled.append)
    wanted = [(loop, loop.letters) for loop in LOOPS]
    prepare(wanted, stop=lambda: len(compiled) == 2)
    assert compiled == wanted[:2]


def test_starting_up_loads_no_compiler() -> None:
    code = "import psserver.cli, psserver.fast, sys; print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_loop_counts_its_arguments() -> None:
    assert fold_loop.variant([0, 0, 0, None]) == "wrf-"
    with pytest.raises(TypeError, match="fold_loop takes 4 arguments, got 3"):
        fold_loop.variant([0, 0, 0])


def double(value: float) -> float:
    return value + value


def test_code_of_another_variant_in_the_cache_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two processes leave it that compile two variants of a function at the same time."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "not_kept", "")
    for signature in ("f4(f4)", "f8(f8)"):
        compiled.compiled(signature)(double)
    one, other = sorted(tmp_path.rglob("*.nbc"))
    other.write_bytes(one.read_bytes())
    assert compiled.compiled("f8(f8)")(double)(0.1) == 0.2
    assert "the cache has code for" in compiled.not_kept
