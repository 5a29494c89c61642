from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made
