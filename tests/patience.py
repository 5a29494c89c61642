"""How long a test waits for what is to come before it calls it hung: the one place for all tests.

Two busy cores say nothing about code. A test waits for an event, with this patience; it neither asserts that something
took less time than so much, nor that something has not happened yet because it usually takes longer. A promise of
seconds is held by what it is made of: the configured times, which add up to it; counts, and the order of events. In a
soak, on a quiet machine, the seconds are held, too (`scripts/soak times`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.repetitions import SOAK

# Seconds. A test's own limit (`timeout` in pyproject.toml) is several times as long.
PATIENCE = 60.0


def at_most(seconds: float) -> float:
    """How long to wait for what is promised within `seconds`: so long in a soak, elsewhere `PATIENCE`."""
    return seconds if SOAK else PATIENCE


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """In a soak: the block takes less."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds or not SOAK, f"promised within {seconds:g} s, took {took:.2f} s"
