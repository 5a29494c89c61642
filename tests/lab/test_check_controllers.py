"""`ps-lab check` of logs in which a controller changes the policy: who may decide, what and when."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pslab.verify.harness import CoordinatorHarness
from tests.lab.logs import Record, find, verify


def decided() -> list[Record]:
    """K becomes 2 at version 40, and 4 at version 60, with the square root of the rate."""
    adapt: dict[str, Any] = {"name": "adasync", "rate": "sqrt"}
    job = CoordinatorHarness("k-async", {"aggregate": 1}, workers=4, terms={"adapt": adapt}).starts()
    turn = 0
    while job.version < 65:
        worker = f"w{turn % 4}"
        if job.holds(worker) is not None:
            job.commits(worker, loss=4.0 if job.version < 20 else 0.5 if job.version < 40 else 0.001)
        turn += 1
    for worker in ("w0", "w1", "w2", "w3"):
        job.leaves(worker)
    return [json.loads(line) for line in job.lines()]


def test_the_log_itself_passes() -> None:
    records = decided()
    assert [line["policy"]["aggregate"] for line in records if line["kind"] == "policy"] == [2, 4]
    found = verify(records)
    assert found.ok, found.violations
    assert "controller" in found.counts


SPOILT: dict[str, Callable[[Record], object]] = {
    "knob": lambda change: change.update(policy={"name": "k-sync", "aggregate": 4}),
    "controller": lambda change: change.update(by="controller noise-scale"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_wrong_decision_is_named(spoil: Callable[[Record], object]) -> None:
    records = decided()
    spoil(find(records, "policy", 1))
    assert verify(records).counts["controller"] > 0


def test_a_decision_too_soon_or_after_a_person_is_named() -> None:
    records = decided()
    find(records, "job")["adapt"]["every"] = 21
    assert verify(records).counts["controller"] == 1
    records = decided()
    del find(records, "policy")["inputs"]
    assert verify(records).counts["controller"] == 1


def test_a_decision_without_a_controller_is_named() -> None:
    records = decided()
    del find(records, "job")["adapt"]
    assert verify(records).counts["controller"] == 2
