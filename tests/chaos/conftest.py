"""Experiments of this folder name their scripts from the repository's root."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import ROOT
from tests.forking import popen


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(autouse=True, scope="module")
def forks() -> Iterator[None]:
    """Also in a soak: it is for kills, and most of a run would be the start of processes."""
    with popen.forking(in_soak=True):
        yield
