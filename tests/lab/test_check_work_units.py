"""What `ps-lab check` says of a log whose work units were not each counted once."""

import json
from collections.abc import Callable

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator.units import WorkTerms
from tests.lab.logs import Record, changed, find, inserted, verify

Edit = Callable[[list[Record]], None]


def honest() -> list[Record]:
    """Two units of two parts; w1 gives one back, and dies with another."""
    harness = CoordinatorHarness("async", now=0.0, work=WorkTerms(2, 1, 2)).starts()
    harness.abandons("w1", reason="nonfinite")
    harness.ready("w1")
    harness.commits("w0")
    harness.leaves("w1")
    while not harness.stopped:
        harness.commits("w0")
    assert harness.verdict().ok
    return [json.loads(line) for line in harness.lines()]


def without_place(records: list[Record]) -> None:
    for name in ("epoch", "unit", "part"):
        del find(records, "grant")[name]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (changed("grant", 2, unit=0, part=0), "takes epoch 0, unit 0, part 0, which is out already"),
        (changed("grant", 4, unit=0, part=0), "takes epoch 0, unit 0, part 0, which is counted already"),
        (changed("grant", 4, unit=0, part=0), "counts epoch 0, unit 0, part 0 a second time"),
        (
            changed("grant", 4, unit=0, part=0),
            "was not counted, although the log says that all work units are done",
        ),
        (changed("grant", 0, unit=2), "takes epoch 0, unit 2, part 0, which does not exist"),
        (changed("grant", 0, epoch=1), "takes epoch 1, unit 0, part 0, which does not exist"),
        (changed("grant", 0, part=2), "takes epoch 0, unit 0, part 2, which does not exist"),
        (changed("work", units=0), "takes a part of a work unit, and the job deals none"),
        (without_place, "takes no part of a work unit, and the job deals them"),
        (changed("work", units=3), "unit 2 was never dealt, although the log says"),
        (changed("work", length=0), "unit 0 was not read to its end, although the log says"),
    ],
)
def test_a_planted_violation_is_found(edit: Edit, words: str) -> None:
    records = honest()
    edit(records)
    found = [each.message for each in verify(records).violations if each.check == "work units"]
    assert any(words in message for message in found), found


def test_who_was_not_done_cannot_take_part_again() -> None:
    records = honest()
    inserted("leave", kind="resume", worker="w1")(records)
    assert any("takes part again, and was not done" in each.message for each in verify(records).violations)
