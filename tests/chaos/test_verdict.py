"""What `ps-lab chaos` tells of its runs, without any."""

from collections import Counter
from pathlib import Path

from pslab.chaos.campaign import Disturbance, Outcome
from pslab.chaos.verdict import Round, as_json, text

OUTCOMES = [
    Outcome(Disturbance("kill", "server-1", 3), 12, 2, 1.5),
    Outcome(Disturbance("stop", "worker-0", 3), 20, None, 0.25),
    Outcome(Disturbance("stop", "worker-1", 3), 30, None, 0.75),
    Outcome(Disturbance("cut", "server-0", 3), 40),
]


def made(*problems: str, accuracy: float | None = 0.9) -> Round:
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    return Round(
        Path("/out/run-1"), 7, OUTCOMES, [*problems], metrics, Counter({"apply": 2, "commit": 4}), versions=50
    )


def test_each_kind_has_its_row_and_each_run_its_line() -> None:
    lines = text([made()], 0.95).splitlines()
    assert [line.split() for line in lines[2:6]] == [
        ["coordinator", "cut", "1", "-", "-", "0.0", "0"],
        ["shard", "kill", "1", "1.50", "1.50", "2.0", "2"],
        ["worker", "stop", "2", "0.50", "0.75", "0.0", "0"],
        ["all", "servers", "2", "1.50", "1.50", "1.0", "2"],
    ]
    assert lines[6:] == [
        "1 of them had no next version, for the job ended before one",
        "4 disturbances in 1 runs; 2 versions were undone, and 4 batches computed again",
        "(a rollback after several disturbances stands in the row of each)",
        "run-1: seed 7, 4 disturbances, 50 versions, accuracy 0.9 (0.95 undisturbed)",
        "every run ended as promised",
    ]


def test_what_does_not_hold_is_said_last() -> None:
    """Of a job that measures no accuracy."""
    lines = text([made("check: ticket 3 twice", accuracy=None)], None).splitlines()
    assert lines[-3:] == [
        "run-1: seed 7, 4 disturbances, 50 versions",
        "/out/run-1: check: ticket 3 twice",
        "NOT every run ended as promised",
    ]


def test_programs_are_told_the_same() -> None:
    told = as_json([made()], 0.95)
    assert told["ok"] and told["accuracy_left_alone"] == 0.95
    (run,) = told["rounds"]
    assert (run["seed"], run["versions"], run["versions_undone"], run["batches_computed_again"]) == (
        7,
        50,
        2,
        4,
    )
    assert [each["seconds_to_next_version"] for each in run["disturbances"]] == [1.5, 0.25, 0.75, None]
    assert not as_json([made("check: no")], None)["ok"]
