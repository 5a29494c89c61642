"""Names of runs in tables and charts."""

from pslab.runs.labels import policy_label


def test_labels_show_the_knobs_that_matter() -> None:
    assert policy_label({"name": "ssp", "slack": 2}) == "ssp (slack 2)"
    assert policy_label({"name": "sync", "backup": 1}) == "sync (backup 1)"
    assert policy_label({"name": "sync", "backup": 0}) == "sync"
