"""Fixtures of the tests on several machines."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.machines import machines


@cache
def reason() -> str | None:
    return machines.reason_against()


@pytest.fixture
def two() -> Iterator[machines.Machines]:
    """Machines; where none can be made the test is skipped, and says why."""
    if (why := reason()) is not None:
        pytest.skip(why)
    with machines.Machines(2) as made:
        yield made
