"""No schedule of joins, departures, delays and repetitions deadlocks or miscounts, whatever the policy.

Two hundred schedules per policy (scripts/soak: 10,000), each a different seed over several settings of its knobs.
Every check of `ps-lab check` reads each log as it grows. A failure names the setting and the seed.
"""

from collections import Counter

import pytest

from psserver.decisions.entries import Grant
from tests.coordinator.settings import ALL, SETTINGS, Setting, bounded
from tests.repetitions import repetitions, seeds

SCHEDULES = repetitions(200, soak=10_000)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", SETTINGS)
def test_random_schedules(policy: str) -> None:
    group = SETTINGS[policy]
    happened: Counter[str] = Counter()
    for seed in seeds(200, soak=10_000):
        schedule = group[seed % len(group)].play(seed, 40 + seed % 80)
        happened.update(schedule.job.kinds)
        if seed % 20 == 0:
            assert schedule.job.verdict().ok
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
    """The same acts with two tickets of a worker, where the policy grants them."""
    ahead: Counter[str] = Counter()
    for seed in seeds(200, soak=10_000):
        setting = AHEAD[seed % len(AHEAD)]
        schedule = setting.play(seed, 40 + seed % 80, ahead=True)
        ahead[setting.policy] += sum(grant.ahead for grant in schedule.job.entries(Grant))
    assert {policy for policy, count in ahead.items() if count} == {
        "async",
        "bounded",
        "k-batch-async",
        "ringmaster",
    }
