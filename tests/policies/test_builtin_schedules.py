"""The other built-in policies under the same random schedules and guards as the first four.

60 schedules per policy (scripts/soak: 10,000), each a different seed over several settings of its knobs,
and some for each that has only a local rule of its own.
"""

from collections import Counter
from dataclasses import replace

import pytest

from pslab.verify.schedule import Schedule
from psserver.decisions.entries import Join
from tests.coordinator.settings import Setting
from tests.policies.settings import OTHERS, SAME
from tests.repetitions import repetitions, seeds

SCHEDULES = repetitions(60, soak=10_000)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", SAME)
def test_local_rules_change_no_decision(policy: str) -> None:
    for seed in seeds(10, soak=500):
        ours, theirs = (Setting(name, 2 + seed % 3).play(seed, 80) for name in (policy, SAME[policy]))
        assert decisions(ours) == decisions(theirs)


def decisions(schedule: Schedule) -> list[str]:
    """As text, in which a loss that is not a number equals itself; without what a worker that is back has forgotten,
    which a local rule has and its policy has not."""
    return [
        repr(replace(record, entry=replace(record.entry, forgets=None)))
        if isinstance(record.entry, Join)
        else repr(record)
        for record in schedule.job.log[1:]
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", OTHERS)
def test_random_schedules(policy: str) -> None:
    group = OTHERS[policy]
    happened: Counter[str] = Counter()
    for seed in seeds(60, soak=10_000):
        happened.update(group[seed % len(group)].play(seed, 40 + seed % 80).job.kinds)
    wanted = {"lost", "back", "leave", "abandon", "cancel", "commit", "apply", "done", "stop"}
    if SCHEDULES >= 60:
        assert wanted <= happened.keys(), happened
