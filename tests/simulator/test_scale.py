"""More workers must not make an event dearer: counted in executed lines, not in seconds."""

import sys
from types import FrameType
from typing import Any

import pytest

from pslab.simulator import Cluster, build
from tests.simulator.lab import experiment

pytestmark = pytest.mark.nightly

COMMITS = 2000


class Enough(Exception):
    pass


def lines_per_commit(policy: str, knobs: dict[str, Any], workers: int) -> float:
    """Executed lines per commit (each turn of a loop or comprehension is one), once the first grants are out."""
    cluster = build(
        experiment(
            policy,
            workers=workers,
            policy_knobs=knobs,
            run={"versions": 10**9},
            simulation={"compute": "exponential(1)"},
        )
    )
    lines = 0
    start: int | None = None

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def watch(cluster: Cluster) -> None:
        nonlocal start
        if not cluster.coordinator.state.started:
            return
        if start is None:
            start = cluster.coordinator.state.tickets.next_number
            sys.settrace(count)
        elif cluster.coordinator.state.tickets.next_number > start + COMMITS:
            raise Enough

    before = sys.gettrace()
    try:
        with pytest.raises(Enough):
            cluster.run(watch, every=1)
    finally:
        sys.settrace(before)
    return lines / COMMITS


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("sync", {}),
        ("async", {}),
        ("ssp", {"slack": 2}),
        ("bounded", {"aggregate": 4, "max_staleness": 3}),
        ("bounded", {"aggregate": 1, "max_staleness": 500, "on_stale": "block"}),
    ],
    ids=str,
)
def test_the_work_of_an_event_does_not_grow_with_the_workers(policy: str, knobs: dict[str, Any]) -> None:
    few, many = (lines_per_commit(policy, knobs, workers) for workers in (20, 500))
    assert many < 2 * few
