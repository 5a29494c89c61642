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
    with made(2) as two:
        yield two


@pytest.fixture
def four() -> Iterator[machines.Machines]:
    """As `two`."""
    with made(4) as four:
        yield four


def made(count: int) -> machines.Machines:
    """Not entered yet."""
    if (why := reason()) is not None:
        pytest.skip(why)
    return machines.Machines(count)
