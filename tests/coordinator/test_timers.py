"""Timers of a policy: order, limits, pauses, deadlock and livelock, saved state."""

from collections.abc import Mapping

import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import Record, inputs
from psserver.coordinator.status import explain
from psserver.coordinator.timers import IDLE_LIMIT, TAGS_LIMIT, Timers
from psserver.decisions import entries
from psserver.policies import (
    Apply,
    ClearTimer,
    Commit,
    Decision,
    Event,
    Grant,
    Join,
    Part,
    Policy,
    Ready,
    SetTimer,
    Timer,
    Waiting,
    microseconds,
)
from tests.promises import promise

SECOND = 1_000_000


class Alarmed(Policy):
    """Applies each gradient as it comes. `on_commit` are its timers, in seconds after the commit, 0 to clear one."""

    def __init__(self, *on_commit: tuple[str, float]) -> None:
        self.name, self.knobs, self.on_commit = "Alarmed", {}, on_commit
        self.events: list[Event] = []

    def step(self, event: Event) -> list[Decision]:
        self.events.append(event)
        match event:
            case Ready(worker, ticket):
                return [Grant(worker, ticket)]
            case Commit(_, ticket):
                now = microseconds(event.t)
                timers = [
                    SetTimer(tag, now + round(after * SECOND)) if after else ClearTimer(tag)
                    for tag, after in self.on_commit
                ]
                return [Apply((Part(ticket),)), *timers]
        return []

    def explain(self, worker: str) -> Waiting | None:
        return None

    def state(self) -> Mapping[str, object]:
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        pass

    @property
    def fired(self) -> list[tuple[str, float]]:
        return [(event.tag, event.t) for event in self.events if isinstance(event, Timer)]


def timers_of(harness: CoordinatorHarness) -> list[tuple[str, int, float]]:
    """Tag, due time and time of each firing in the log, in seconds and microseconds."""
    return [(r.entry.tag, r.entry.at, r.t) for r in harness.log if isinstance(r.entry, entries.Timer)]


def started(*on_commit: tuple[str, float], **terms: object) -> tuple[CoordinatorHarness, Alarmed]:
    """Two workers hold a ticket each; w0 commits at second 0, which sets the timers."""
    policy = Alarmed(*on_commit)
    harness = CoordinatorHarness(policy, workers=2, terms=terms).starts()
    harness.commits("w0")
    return harness, policy


@promise("Timers fire in the order of their times, before the next input.")
def test_what_is_due_fires_before_the_next_input_in_the_order_of_time_then_of_setting() -> None:
    harness, policy = started(("late", 2.0), ("b", 1.0), ("a", 1.0))
    harness.now += 2.5
    harness.commits("w1")
    assert timers_of(harness) == [("b", SECOND, 2.5), ("a", SECOND, 2.5), ("late", 2 * SECOND, 2.5)]
    assert [type(event) for event in policy.events[-5:-1]] == [Timer, Timer, Timer, Commit]
    assert harness.verdict().ok


def test_no_timer_fires_once_the_job_has_stopped() -> None:
    harness, policy = started(("x", 1.0))
    harness.take(harness.coordinator.take(inputs.Stopping("enough", True, "done"), harness.now))
    harness.now += 2.0
    harness.leaves("w0")
    assert policy.fired == [] and harness.verdict().ok


@pytest.mark.parametrize(
    ("timer", "keyword"),
    [
        (SetTimer("x", -5), "at least"),
        (SetTimer("x", 999), "at least"),
        (SetTimer("x", 2.5e6), "whole microseconds"),  # type: ignore[arg-type]
        (SetTimer("x", True), "whole microseconds"),
        (SetTimer("", SECOND), "tag"),
        (SetTimer("x" * 65, SECOND), "tag"),
        (SetTimer(7, SECOND), "tag"),  # type: ignore[arg-type]
        (ClearTimer(None), "tag"),  # type: ignore[arg-type]
    ],
)
def test_a_timer_that_is_not_acceptable_ends_the_job(timer: Decision, keyword: str) -> None:
    class Wrong(Alarmed):
        def step(self, event: Event) -> list[Decision]:
            decisions = super().step(event)
            return [*decisions, timer] if isinstance(event, Commit) else decisions

    harness = CoordinatorHarness(Wrong(), workers=2).starts()
    harness.commits("w0")
    assert (
        harness.stopped.startswith("policy: policy Alarmed failed on Commit") and keyword in harness.stopped
    )


def test_there_is_room_for_64_tags_and_no_more() -> None:
    tags = [(f"t{n}", 1.0) for n in range(TAGS_LIMIT)]
    harness, _ = started(*tags, tags[0])
    assert not harness.stopped
    harness, _ = started(*tags, ("one more", 1.0))
    assert "at most 64 timers" in harness.stopped


def test_time_stands_still_while_no_worker_is_here() -> None:
    harness, policy = started(("x", 1.0), idle_timeout=0.0)
    harness.leaves("w0")
    harness.passes(0.25)
    harness.leaves("w1")
    harness.passes(100.0)
    harness.joins("w1", "B")
    harness.passes(0.5)
    assert policy.fired == []
    harness.passes(0.25)
    assert [tag for tag, _ in policy.fired] == ["x"]


def test_a_recovery_postpones_timers() -> None:
    harness, policy = started(("x", 1.0), checkpoint_versions=1, min_workers=1)
    harness.passes(0.25)
    new = Alarmed()
    harness.policy = new
    harness.servers_crash()
    harness.passes(20.0)
    assert new.fired == [] and harness.coordinator.due is None
    for worker in ("w0", "w1"):
        harness.joins(worker, "B")
    harness.ready("w0", "w1")
    left = harness.coordinator.remaining("x", harness.now)
    assert left == pytest.approx(0.75)
    harness.passes(left)
    assert [tag for tag, _ in new.fired] == ["x"] and harness.verdict().ok


class Sleeper(Policy):
    """Grants nothing until its timer has fired `after` times; each firing sets it again."""

    def __init__(self, after: int) -> None:
        self.name, self.knobs, self.left = "Sleeper", {}, after
        self.waiting: dict[str, int] = {}

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Join():
                return [SetTimer("nap", microseconds(event.t) + SECOND)]
            case Ready(worker, ticket):
                self.waiting[worker] = ticket
            case Commit(_, ticket):
                return [Apply((Part(ticket),))]
            case Timer():
                self.left -= 1
                if self.left > 0:
                    return [SetTimer("nap", microseconds(event.t) + SECOND)]
                waiting, self.waiting = self.waiting, {}
                return [Grant(worker, ticket) for worker, ticket in waiting.items()]
        return []

    def explain(self, worker: str) -> Waiting | None:
        return Waiting("its nap to end", timer="nap")


def test_a_timer_is_no_deadlock_and_its_end_is_told() -> None:
    harness = CoordinatorHarness(Sleeper(2), workers=2).starts()
    harness.passes(0.25)
    assert not harness.stopped
    sentence, _ = explain(harness.coordinator, harness.member("w0"), harness.now)
    assert sentence.startswith("its nap to end") and "0.8 s" in sentence
    harness.passes(0.75)
    harness.passes(1.0)
    assert harness.holds("w0") and harness.holds("w1")


def test_without_a_timer_it_is_a_deadlock() -> None:
    class Silent(Sleeper):
        def step(self, event: Event) -> list[Decision]:
            return [d for d in super().step(event) if not isinstance(d, SetTimer)]

    assert "deadlocked" in CoordinatorHarness(Silent(2), workers=2).starts().stopped


def test_timers_without_end_are_a_livelock_that_is_named() -> None:
    harness = CoordinatorHarness(Sleeper(10**9), workers=2).starts()
    for _ in range(IDLE_LIMIT - 1):
        harness.passes(1.0)
        assert not harness.stopped
    harness.passes(1.0)
    assert "livelock" in harness.stopped and "'nap'" in harness.stopped and "w0, w1" in harness.stopped


def test_a_signal_saves_and_ends_what_there_is_though_a_timer_is_due() -> None:
    harness, policy = started(("x", 1.0), checkpoint_versions=10)
    harness.now += 2.0
    saved = harness.gives(inputs.SaveAsked())
    assert [record.entry.kind for record in saved if isinstance(record, Record)] == ["checkpoint"]
    ended = harness.gives(inputs.Stopping("stopped by SIGTERM", False, "SIGTERM"))
    kinds = [record.entry.kind for record in ended if isinstance(record, Record)]
    assert kinds[-1] == "stop" and "timer" not in kinds and policy.fired == []


def test_a_pause_moves_every_timer_by_its_length() -> None:
    timers = Timers({"a": 10, "b": 20})
    timers.pause(True, 5)
    timers.pause(True, 9)
    assert timers.take_due(100) is None
    timers.pause(False, 12)
    assert timers.pending == {"a": 17, "b": 27} and timers.take_due(17) == ("a", 17)
    assert timers.due == 27


def test_a_timer_that_is_set_in_a_pause_counts_from_its_end() -> None:
    harness = CoordinatorHarness(Sleeper(1), workers=2)
    harness.joins("w0")
    harness.passes(10.0)
    harness.joins("w1")  # sets the timer, and ends the pause
    harness.ready("w0")
    harness.commits("w0", ready=False)
    harness.ready("w0", "w1")
    assert harness.coordinator.due == pytest.approx(harness.now + 1.0)
    harness.passes(1.0)
    assert harness.holds("w0") and harness.holds("w1")
    timers = Timers({"a": 50})
    timers.pause(True, 10)
    timers.set(SetTimer("b", 5000), 30)
    timers.pause(False, 40)
    assert timers.pending == {"a": 80, "b": 5010}
