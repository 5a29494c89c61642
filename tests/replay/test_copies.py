"""Timers under random schedules of each policy that sets them: a twin knows when each fires, and copies take over.

What is due fires before the next input, by time and then by setting; a copy that is given the same inputs, and goes on
where the other one ended, writes the same log. 10,000 schedules per policy in a soak.
"""

import random
from typing import Any

import pytest

from pslab.verify.guarded import Case, GuardedHarness
from psserver.coordinator import Coordinator, Input, JobState, JobTerms, Output, Record
from psserver.decisions import entries
from psserver.policies import (
    Apply,
    ClearTimer,
    Commit,
    Decision,
    Done,
    Event,
    Grant,
    Leave,
    Part,
    Policy,
    Ready,
    SetTimer,
    Timer,
    Waiting,
    build,
    microseconds,
)
from psserver.service.replicas.inputs import Noted, decode, encode
from tests.coordinator.settings import Setting
from tests.policies.settings import SETTINGS
from tests.promises import promise
from tests.repetitions import repetitions, seeds

TAGS = ("a", "b", "c", "d")


class Restless(Policy):
    """Applies each gradient as it comes. Sets and clears timers at random; some grants wait for one."""

    def __init__(self, workers: int) -> None:
        self.dice = random.Random(workers)
        self.held: dict[str, int] = {}
        self.begun = False

    def step(self, event: Event) -> list[Decision]:
        match event:
            case Ready(worker, ticket) if self.begun and not self.dice.randrange(4):
                self.held[worker] = ticket
                return [self.after(event.t, f"hold {worker}")]
            case Ready(worker, ticket):
                return [Grant(worker, ticket)]
            case Commit(_, ticket):
                self.begun = True
                return [Apply((Part(ticket),)), *self.timers(event.t)]
            case Timer(tag) if tag.startswith("hold "):
                return [Grant(tag[5:], self.held.pop(tag[5:]))]
            case Leave(worker) | Done(worker) if worker in self.held:
                del self.held[worker]
                return [ClearTimer(f"hold {worker}")]
        return self.timers(event.t) if self.begun else []

    def timers(self, t: float) -> list[Decision]:
        if self.dice.randrange(3):
            return []
        tag = self.dice.choice(TAGS)
        return [self.after(t, tag), ClearTimer(self.dice.choice(TAGS))]

    def after(self, t: float, tag: str) -> SetTimer:
        return SetTimer(tag, microseconds(t) + self.dice.choice((1000, 200_000, 400_000, 700_001)))

    def explain(self, worker: str) -> Waiting | None:
        return Waiting("its timer", timer=f"hold {worker}") if worker in self.held else None


class Watched(Policy):
    """A policy beside a twin of its timers, which knows what the policy hears and says, and who is there."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name, self.knobs, self.ahead = policy.name, policy.knobs, policy.ahead
        self.tensors, self.local_rule = policy.tensors, policy.local_rule
        # Tag -> when it is due; in the order of setting.
        self.due: dict[str, int] = {}
        self.present: set[str] = set()
        # Since when nobody is there, so that time stands still.
        self.since: int | None = None
        # (tag, when it was due, when it fired)
        self.fired: list[tuple[str, int, int]] = []

    def explain(self, worker: str) -> Waiting | None:
        return self.policy.explain(worker)

    @property
    def rests(self) -> bool:
        return self.policy.rests

    def step(self, event: Event) -> list[Decision]:
        t = microseconds(event.t)
        late = {tag: at for tag, at in self.due.items() if at <= t and self.since is None}
        if isinstance(event, Timer):
            assert late and event.tag == min(late, key=lambda tag: late[tag]), (
                f"{event}, and due are {self.due}"
            )
            self.fired.append((event.tag, self.due.pop(event.tag), t))
        else:
            assert not late, f"{event} before the timers {late}"
        decisions = self.policy.step(event)
        for decision in decisions:
            if isinstance(decision, SetTimer | ClearTimer):
                self.due.pop(decision.tag, None)
            if isinstance(decision, SetTimer):
                self.due[decision.tag] = decision.at - (0 if self.since is None else t - self.since)
        return decisions

    def see(self, outputs: list[Output], t: int) -> None:
        """Learn from the entries of an input who is there behind it."""
        for output in outputs:
            match output:
                case Record(entry=entries.Join(worker)):
                    self.present.add(worker)
                case Record(entry=entries.Leave(worker)):
                    self.present.discard(worker)
        if self.since is None:
            self.since = None if self.present else t
        elif self.present:
            since, self.since = self.since, None
            self.goes_on(t - since)

    def goes_on(self, length: int) -> None:
        """Learn that time stood still for so long."""
        if self.since is None:
            self.due = {tag: at + length for tag, at in self.due.items()}


class Copied(Coordinator):
    """A coordinator whose policy is watched. It notes its inputs."""

    policy: Watched

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.notes: list[Noted] = []

    def take(self, given: Input, now: float) -> list[Output]:
        self.notes.append((now, given))
        return super().take(given, now)

    def _end(self, now: float) -> list[Output]:
        outputs = super()._end(now)
        self.policy.see(outputs, microseconds(self._driver.time(now)))
        return outputs


class Succeeded(GuardedHarness):
    """A job whose coordinator dies now and then: a copy that was given its inputs goes on."""

    coordinator: Copied

    def __init__(self, case: Case) -> None:
        self.takeovers, self.case = 0, case
        super().__init__(case)

    def _new(self, state: JobState | None = None) -> Copied:
        terms = JobTerms("j", workers=self.workers, **self.case.terms)
        return Copied(terms, Watched(build(self.case.policy, self.case.knobs, self.workers)))

    def copy(self) -> Copied:
        """Return a coordinator that was given all inputs so far, in messages between servers."""
        noted, _ = decode(encode(self.coordinator.notes, 0.0))
        copy, outputs = self._new(), list[Output]()
        for each in noted:
            assert isinstance(each, tuple)
            outputs += copy.take(each[1], each[0])
        # As text, in which a loss that is not a number equals itself.
        assert repr([output for output in outputs if isinstance(output, Record)]) == repr(self.log)
        return copy

    def copy_takes_over(self) -> None:
        self.takeovers += 1
        self.coordinator = self.copy()

    def servers_restart(self, servers: int = 0) -> list[Output]:
        """A copy takes over: a checkpoint would begin other inputs."""
        self.copy_takes_over()
        return []

    def _can_be_saved(self) -> bool:
        return True


GROUPS = {
    **{name: SETTINGS[name] for name in ("deadline-sync", "fedbuff-timeout")},
    "random": tuple(Setting(f"{__name__}:Restless", n) for n in (2, 3, 4)),
}


@promise("A copy of the coordinator that takes over decides what the first one would have decided.")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", GROUPS)
def test_random_schedules_with_takeovers(policy: str) -> None:
    group, fired, takeovers = GROUPS[policy], 0, 0
    for seed in seeds(20, soak=10_000, fast=10):
        setting = group[seed % len(group)]
        job = Succeeded(setting.case)
        setting.play(seed, 100 + seed % 200, job=job, batches=20)
        logged = [
            (record.entry.tag, record.entry.at, microseconds(record.t))
            for record in job.log
            if isinstance(record.entry, entries.Timer)
        ]
        assert logged == job.copy().policy.fired, f"{setting}, seed {seed}"
        fired += len(logged)
        takeovers += job.takeovers
    print(f"{policy}: {fired} timers fired, {takeovers} takeovers")
    assert fired > repetitions(20, soak=10_000, fast=10) and takeovers > repetitions(20, soak=10_000, fast=10)
