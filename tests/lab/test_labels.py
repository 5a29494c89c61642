"""Names of runs in tables and charts."""

from pathlib import Path

from pslab.runs.folder import Run
from pslab.runs.labels import labels, policy_label
from tests.lab.logs import async_log, write_run


def test_runs_of_the_same_policy_are_told_apart(tmp_path: Path) -> None:
    runs = [Run(write_run(tmp_path / name, async_log())) for name in ("one", "two")]
    assert labels(runs) == ["async, one", "async, two"]


def test_labels_show_the_knobs_that_matter() -> None:
    assert policy_label({"name": "ssp", "slack": 2}) == "ssp (slack 2)"
    assert policy_label({"name": "sync", "backup": 1}) == "sync (backup 1)"
    assert policy_label({"name": "sync", "backup": 0}) == "sync"
