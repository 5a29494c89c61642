"""Fixtures of this folder's tests."""

from collections.abc import Iterator

import pytest

from tests.probes import distributed_models


@pytest.fixture
def jobs_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without the addresses of servers, and close all jobs of this process at the end."""
    for name in ("PS_HOSTS", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    yield
    for job in distributed_models():
        job.close()
