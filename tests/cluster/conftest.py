"""Fixtures of the tests with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.forking.fixtures import forks

__all__ = ["cluster", "end_of_data", "forks"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made


@pytest.fixture
def end_of_data(tmp_path: Path) -> Path:
    """Workers started with --until this file go on until a test touches it."""
    return tmp_path / "end-of-data"
