"""What layers keep between batches is the same in a run and in its replay: warm-up and evaluations do not move it."""

from pathlib import Path

import pytest

from pslab.replay.run_folder import prove, replay_of
from tests.replay.simulated import simulate

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("name", "policy"),
    [("Averages", "async"), ("Recurrent", "sync"), ("Scattered", "sync")],
)
def test_a_run_is_recomputed(name: str, policy: str, tmp_path: Path) -> None:
    run = simulate(
        tmp_path / "run",
        policy,
        cluster={"servers": 2, "workers": 2},
        simulation={"problem": "job", "evaluate": 4},
        optimizer={"name": "momentum", "learning_rate": 0.005},
        job={
            "module": f"tests/replay/kept_state.py:{name}",
            "epochs": 2,
        },
    )
    replay = replay_of(run)
    found = replay.run()
    assert found.first is None, found.first
    assert found.agreed == found.computed == 2 * (5 + 6)
    assert prove(run, replay).holds
