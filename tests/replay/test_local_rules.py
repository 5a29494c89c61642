"""Runs whose workers did more than compute gradients, executed again: equal to the bit."""

from pathlib import Path
from typing import Any

import pytest

from pslab.replay.run_folder import prove, replay_of
from pslab.replay.worker_replica import DataError
from pslab.runs.folder import RunError
from tests.replay.simulated import Record, edit_log, simulate

OUTER = {"optimizer": {"name": "sgd", "learning_rate": 1.0}}
ROUGH = {
    "faults": {
        "loss": 0.1,
        "duplicate": 0.1,
        "crashes": [{"worker": 1, "at": 9.0, "restart": 3.0}, {"worker": 2, "at": 8.0}],
        "disconnects": [{"worker": 3, "at": 7.0, "seconds": 30.0}],
    },
    "links": {"latency": 0.1},
}

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "local-sgd": ("local-sgd", {"steps": 4, "learning_rate": 0.1}, OUTER),
    "diloco": ("diloco", {"steps": 4, "learning_rate": 0.01}, {}),
    "local-async": ("local-async", {"steps": 3, "inner": "adamw"}, {}),
    "easgd": ("easgd", {"steps": 4, "learning_rate": 0.1}, OUTER),
    "dana-slim": ("dana-slim", {}, {"optimizer": {"name": "sgd", "learning_rate": 0.05}}),
    "narrow wire": ("easgd", {"steps": 2}, OUTER | {"cluster": {"wire_dtype": "bfloat16"}}),
    "rough local-sgd": ("local-sgd", {"steps": 4, "learning_rate": 0.1}, OUTER | ROUGH),
    "rough diloco": ("diloco", {"steps": 3, "learning_rate": 0.01}, ROUGH),
    "rough easgd": ("easgd", {"steps": 3, "learning_rate": 0.1}, OUTER | ROUGH),
    "rough dana-slim": ("dana-slim", {}, ROUGH),
    "cancelled": ("tests.simulator.local_backup:LocalBackup", {"steps": 3}, OUTER),
}


@pytest.mark.parametrize("name", RUNS)
def test_weights_are_equal_to_the_bit(tmp_path: Path, name: str) -> None:
    policy, knobs, sections = RUNS[name]
    run = simulate(tmp_path / "run", policy, knobs, job={"module": "none:none", "epochs": 3}, **sections)
    replay = replay_of(run)
    result = replay.run()
    assert result.first is None, str(result.first)
    assert prove(run, replay).holds
    committed = sum(counts.committed for counts in run.summary.contributions.values())
    assert result.agreed == result.computed == committed - result.skipped > 20


def test_a_rule_that_remembers_leaves_nothing_out(tmp_path: Path) -> None:
    """What is dropped at the stop has no version, but the worker's velocity knows it."""
    run = simulate(tmp_path / "run", "dana-slim", run={"versions": 40})
    assert replay_of(run).run().skipped == 0


def test_another_number_of_steps_is_found(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "local-sgd", {"steps": 4, "learning_rate": 0.1}, **OUTER)

    def change(records: list[Record]) -> None:
        records[0]["local"]["steps"] = 2

    edit_log(run, change)
    first = replay_of(run).run().first
    assert first is not None and first.what == "number of samples"


def test_a_rule_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "easgd", **OUTER)

    def change(records: list[Record]) -> None:
        records[0]["local"]["name"] = "plastic"

    edit_log(run, change)
    with pytest.raises((DataError, RunError), match="expected a local rule that this worker knows"):
        replay_of(run).run()
