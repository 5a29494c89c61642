"""Ports that are told to daemons before they begin."""

from tests.engines.ports import RANGE, unclaimed


def test_they_are_none_that_the_system_gives_by_itself() -> None:
    first, last = map(int, RANGE.read_text().split())
    found = unclaimed(20)
    assert len(set(found)) == 20 and not any(first <= port <= last for port in found)
