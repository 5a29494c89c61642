"""No schedule of joins, departures, delays and repetitions deadlocks or miscounts, whatever the policy.

Two hundred schedules per policy (scripts/soak: 10,000), each a different seed over several settings of its knobs.
A failure names the setting and the seed.
"""

from collections import Counter

import pytest

from pslab.verify.schedule import Seeded
from psserver.decisions.entries import Grant
from tests.coordinator.settings import ALL, SETTINGS, Setting, bounded, second_opinion
from tests.repetitions import repetitions, seeds

SCHEDULES = repetitions(200, soak=10_000)
# Every fifth schedule `ps-lab check` is asked for a second opinion.
SECOND_OPINION = 5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", SETTINGS)
def test_random_schedules(policy: str) -> None:
    group = SETTINGS[policy]
    happened: Counter[str] = Counter()
    for seed in seeds(200, soak=10_000):
        setting = group[seed % len(group)]
        try:
            schedule = setting.play(Seeded(seed), 40 + seed % 80)
        except Exception as error:
            error.add_note(f"{setting}, seed {seed}")
            raise
        if seed % SECOND_OPINION == 0:
            assert second_opinion(schedule) == [], (str(setting), seed)
            happened.update({record.entry.kind for record in schedule.log})
    # The schedules are not idle: everything that can happen does.
    wanted = {"lost", "back", "leave", "abandon", "cancel", "commit", "apply", "done", "stop"}
    if SCHEDULES >= 200:
        assert wanted <= happened.keys(), happened


AHEAD = (
    *ALL,
    Setting("k-batch-async", 3, {"aggregate": 2}),
    Setting("ringmaster", 3, {"threshold": 2, "stops": True}),
    bounded("block", 2, 1, 2),
)


@pytest.mark.timeout(600)
def test_random_schedules_of_workers_that_ask_ahead() -> None:
    """The same scenes with two tickets of a worker, where the policy grants them."""
    ahead: Counter[str] = Counter()
    for seed in seeds(200, soak=10_000):
        setting = AHEAD[seed % len(AHEAD)]
        try:
            schedule = setting.play(Seeded(seed), 40 + seed % 80, eager=True)
        except Exception as error:
            error.add_note(f"{setting}, seed {seed}")
            raise
        granted = (record.entry for record in schedule.log if isinstance(record.entry, Grant))
        ahead[setting.policy] += sum(grant.ahead for grant in granted)
        if seed % SECOND_OPINION == 0:
            assert second_opinion(schedule) == [], (str(setting), seed)
    assert {policy for policy, count in ahead.items() if count} == {
        "async",
        "bounded",
        "k-batch-async",
        "ringmaster",
    }


@pytest.mark.timeout(600)
def test_random_schedules_of_several_phases() -> None:
    """The same scenes where workers stay, each with several parts of its data, and end a phase for all now and then."""
    starts = 0
    for seed in seeds(120, soak=10_000):
        setting = AHEAD[seed % len(AHEAD)]
        try:
            schedule = setting.play(Seeded(seed), 40 + seed % 80, eager=seed % 2 == 1, phases=2 + seed % 2)
        except Exception as error:
            error.add_note(f"{setting}, seed {seed}")
            raise
        starts += sum(record.entry.kind == "start" for record in schedule.log)
        if seed % SECOND_OPINION == 0:
            assert second_opinion(schedule) == [], (str(setting), seed)
    if SCHEDULES >= 200:
        assert starts > repetitions(180, soak=900)
