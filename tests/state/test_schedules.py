"""A job goes on as if nothing had happened: the same log, the same bits.

4 schedules per built-in policy, or 200 in a soak: `tests.state.schedules.run`.
"""

import pytest

from psserver.optimizers import names as optimizer_names
from psserver.policies import names as policy_names
from tests.repetitions import FIRST_SEED, SOAK, repetitions
from tests.state.schedules import run

SCHEDULES = repetitions(4, soak=200)


@pytest.mark.timeout(3600 if SOAK else 600)
def test_restored_in_the_middle() -> None:
    report = run(SCHEDULES, FIRST_SEED)
    print(report)
    assert set(report.schedules) == set(policy_names())
    if SCHEDULES < 4:
        return
    # It was worth it: everything happened, and often.
    assert set(report.optimizers) == set(optimizer_names())
    wanted = {"abandon", "back", "cancel", "drop", "fold", "leave", "lost"}
    assert wanted <= report.kinds
    assert report.restarts > report.schedules.total() and report.resized > len(report.schedules)
