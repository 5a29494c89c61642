"""What is frozen has not moved. `python -m tests.oracles` says the same at once, and freezes anew."""

import pytest

from tests.oracles.areas import AREAS, SLOW
from tests.oracles.frozen import load, moved, write


@pytest.mark.parametrize("area", [*AREAS, *(pytest.param(each, marks=pytest.mark.nightly) for each in SLOW)])
@pytest.mark.timeout(900)
def test_nothing_has_moved(area: str, regenerate: bool) -> None:
    found = {**AREAS, **SLOW}[area]()
    if regenerate:
        write({area: found})
    lines = moved(area, found)
    assert not lines, "\n".join(lines)


def test_every_frozen_area_is_compared() -> None:
    assert load().keys() == {**AREAS, **SLOW}.keys()
