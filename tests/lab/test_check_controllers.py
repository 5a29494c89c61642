"""`ps-lab check` of logs in which a controller changes the policy: each decision must follow from its inputs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pslab.verify.harness import CoordinatorHarness
from tests.lab.test_check_changes import Line, at, verdict


def decided() -> list[Line]:
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
    lines = decided()
    assert [line["policy"]["aggregate"] for line in lines if line["kind"] == "policy"] == [2, 4]
    found = verdict(lines)
    assert found.ok, found.violations
    assert "controller" in found.counts


def other_value(change: Line) -> None:
    change["policy"]["aggregate"] = 3


def other_knob(change: Line) -> None:
    change["policy"] = {"name": "k-sync", "aggregate": 4}


def other_inputs(change: Line) -> None:
    change["inputs"]["loss"] = 1.0


def other_wanted(change: Line) -> None:
    change["inputs"]["wanted"] = 3.9


def no_inputs(change: Line) -> None:
    change["inputs"] = {"first": 1.0}


def other_rate(change: Line) -> None:
    change["rate"] = 4.0


def no_rate(change: Line) -> None:
    del change["rate"]


def other_controller(change: Line) -> None:
    change["by"] = "controller noise-scale"


@pytest.mark.parametrize(
    "spoil",
    [
        other_value,
        other_knob,
        other_inputs,
        other_wanted,
        no_inputs,
        other_rate,
        no_rate,
        other_controller,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_wrong_decision_is_named(spoil: Callable[[Line], None]) -> None:
    lines = decided()
    spoil(lines[at(lines, "policy", 1)])
    assert verdict(lines).counts["controller"] > 0


def test_a_decision_too_soon_or_after_a_person_is_named() -> None:
    lines = decided()
    lines[at(lines, "job")]["adapt"]["every"] = 21
    assert verdict(lines).counts["controller"] == 1
    lines = decided()
    del lines[at(lines, "policy", 0)]["inputs"]
    assert verdict(lines).counts["controller"] == 1


def test_a_decision_without_a_controller_is_named() -> None:
    lines = decided()
    del lines[at(lines, "job")]["adapt"]
    assert verdict(lines).counts["controller"] == 2
