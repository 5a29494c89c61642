"""Fixtures for the conftest.py of a folder: commands that its tests start are forks (`popen`)."""

from collections.abc import Iterator

import pytest

from tests.forking import popen


@pytest.fixture(autouse=True, scope="module")
def forks() -> Iterator[None]:
    """What a module's fixtures and tests start, and what is started by that."""
    with popen.forking():
        yield
