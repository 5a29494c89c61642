"""Fixtures of the tests on several machines."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.machines import machines
from tests.machines.clusters import COUNT, Spread, missing, spread


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


@contextmanager
def site(engine: str, folder: Path) -> Iterator[Spread]:
    """An engine over machines; as `two`, also where the engine is missing."""
    if (absent := missing(engine)) is not None:
        pytest.skip(absent)
    with made(COUNT) as machines, spread(engine, machines, folder) as place:
        yield place
