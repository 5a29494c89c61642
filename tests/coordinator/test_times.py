"""What workers say of their time is for the log: kept as they said it, and nothing is decided by it."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from psserver.coordinator import Coordinator, Input, JobTerms, Output, Record, inputs
from psserver.decisions.entries import Commit
from psserver.policies import build
from pswire import protocol
from pswire.protocol import UNTOLD, Times
from tests.coordinator.settings import Setting
from tests.promises import promise


def entry_of(times: Times) -> dict[str, Any]:
    """The log's entry of a commit with these times."""
    return Commit("w0", 3, 1, 8, 0.5, 1.0, *times).to_json()


def test_they_are_written_in_whole_microseconds_behind_what_was_there() -> None:
    written = entry_of(Times(0.0012345678, 0.25, 3.9999999))
    assert list(written)[-3:] == ["pull", "compute", "before"]
    assert (written["pull"], written["compute"], written["before"]) == (0.001235, 0.25, 4.0)
    assert list(entry_of(Times(0.0, 0.5)))[-2:] == ["pull", "compute"]
    assert "pull" not in entry_of(UNTOLD) and list(entry_of(UNTOLD))[-1] == "norm"


def test_a_commit_that_is_repeated_with_other_times_changes_nothing() -> None:
    coordinator = Coordinator(JobTerms("j", 1, 1, 0), build("async", {}, 1))
    coordinator.take(inputs.Opened(), 0.0)
    coordinator.take(inputs.JoinAsked("w0", "s", 0), 0.0)
    coordinator.take(inputs.Connected("w0", 0, "s"), 0.0)
    coordinator.take(inputs.Requested("w0", 0, protocol.Ready()), 0.0)
    coordinator.take(inputs.Requested("w0", 0, protocol.Commit(1, ready=True)), 0.0)
    (ticket,) = [found.number for found in coordinator.state.tickets.open_of("w0")]
    first = coordinator.take(
        inputs.Requested("w0", 0, protocol.Commit(ticket, samples=8, times=Times(0.25, 0.5))), 1.0
    )
    again = coordinator.take(
        inputs.Requested("w0", 0, protocol.Commit(ticket, samples=8, times=Times(7.0, 7.0))), 2.0
    )
    (told,) = [o.entry for o in first if isinstance(o, Record) and isinstance(o.entry, Commit)]
    assert (told.pull, told.compute, told.before) == (0.25, 0.5, None)
    assert not [o for o in again if isinstance(o, Record)]


def logged(policy: str, knobs: dict[str, object], seed: int) -> list[dict[str, Any]]:
    schedule = Setting(policy, 3, knobs).play(seed, 60)
    return [record.entry.to_json() for record in schedule.job.log]


def tell_times(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Workers tell times from now on, of which some fit between grant and commit, and others are left out."""
    chance, take = Random(seed), Coordinator.take

    def told(coordinator: Coordinator, given: Input, now: float) -> list[Output]:
        if not (isinstance(given, inputs.Requested) and isinstance(given.request, protocol.Commit)):
            return take(coordinator, given, now)
        size = chance.choice((0.0, 1e-7, 1.0, 1e300))
        times = Times(size * chance.random(), 9 * size * chance.random(), size * chance.random())
        return take(coordinator, replace(given, request=replace(given.request, times=times)), now)

    patch.setattr(Coordinator, "take", told)


@promise("Times that workers report decide nothing.")
@pytest.mark.parametrize(
    ("policy", "knobs"),
    [("sync", {"backup": 1}), ("bounded", {"aggregate": 2, "max_staleness": 1}), ("dssp", {}), ("async", {})],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_decided_by_them(
    policy: str, knobs: dict[str, object], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same schedule with and without them, whatever they are, gives the same log but for them."""
    plain = logged(policy, knobs, seed)
    tell_times(monkeypatch, seed)
    timed = logged(policy, knobs, seed)
    assert [{k: v for k, v in entry.items() if k not in Times._fields} for entry in timed] == plain
