"""Whatever dies, is cut off or breaks, at whatever step: the job goes on, and every batch of every worker counts once.

Every built-in policy in turn; a quarter of the jobs has a disk that fails. Few here; `scripts/soak crashes` takes many,
in several processes, and shows the shortest story of one that fails.
"""

import pytest

from tests.promises import promise
from tests.recovery.campaign import play_all
from tests.recovery.settings import POLICIES
from tests.repetitions import repetitions, seeds

SCHEDULES = repetitions(500, soak=50_000)


@promise("Random crashes, at every point of recovery and of real processes, lose no row.")
@pytest.mark.timeout(3600)
def test_many_schedules() -> None:
    tally = play_all(seeds(500, soak=50_000))
    assert tally.failed is None, tally.failed
    if SCHEDULES >= 500:
        # The schedules are not idle: everything that can happen does, under every policy.
        assert set(tally.counts["policies"]) == set(POLICIES)
        assert all(tally.counts["in all"].values())
        assert tally.counts["faults"].keys() >= {
            "kill server 0",
            "kill shard",
            "kill worker",
            "kill all servers",
            "power loss",
            "partition worker",
            "partition shard",
            "connection cut",
            "exchange cut",
            "message late",
            "message twice",
            "a worker's timeout passes",
            "SIGTERM",
            "disk crash",
            "disk full",
            "disk short",
            "disk broken",
            "disk lost sync",
            "disk flip",
        }
