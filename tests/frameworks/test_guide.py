"""The loops of docs/guides/loop.md, each as it stands; tests/docs/test_by_hand.py has that in numpy."""

import contextlib
import io
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, named
from tests.frameworks.installed import torch_or_skip

pytestmark = [pytest.mark.tensorflow, pytest.mark.cluster, pytest.mark.timeout(600)]

PAGE = "docs/guides/loop.md"


EXTRAS = {"torch": "torch", "jax": "jax", "tensorflow": "worker"}


def check(framework: str, extra: str) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed (scripts/install {extra})")
    if framework == "torch":
        torch_or_skip()


@pytest.mark.parametrize(("block", "extra"), EXTRAS.items())
def test_a_loop_of_the_guide_finds_the_weights(
    block: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(block, extra)
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "loop.py"
    script.write_text(named(PAGE, "data") + named(PAGE, block), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(script))
    assert out.getvalue() == "[ 1. -2.  3.]\n"


@pytest.mark.nightly
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_an_example_learns_digits(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(framework, framework)
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (scripts/install examples)")
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(ROOT / "examples" / f"{framework}_loop.py"))
    said, _, accuracy = out.getvalue().rpartition(" ")
    assert "version 135," in said and float(accuracy) > 0.9, out.getvalue()
