"""A simulated run whose every update follows on a timer, executed again: 10,000 timers in a soak."""

from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.replay.run_folder import prove, replay_of
from pswire.decisions import entries
from tests.repetitions import repetitions
from tests.replay.simulated import simulate

TIMERS = repetitions(150, soak=10_000)
KNOBS: dict[str, dict[str, object]] = {
    "fedbuff-timeout": {"aggregate": 1000, "timeout": 0.2},
    "deadline-sync": {"grace": 0.2, "share": 0.0, "budget": 1.0, "patience": 0},
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", KNOBS)
def test_so_many_timers_are_replayed_to_the_bit(tmp_path: Path, policy: str) -> None:
    sections = {"run": {"versions": TIMERS + TIMERS // 8}, "job": {"epochs": 10_000}}
    run = simulate(tmp_path / "run", policy, KNOBS[policy], **sections)
    timers = sum(isinstance(entry.fact, entries.Timer) for entry in run.decisions())
    assert timers >= TIMERS and check_run(run).ok
    replay = replay_of(run)
    replay.run()
    assert prove(run, replay).holds
    assert replay.result.finished and replay.result.first is None
    assert replay.result.version == run.summary.versions == TIMERS + TIMERS // 8
