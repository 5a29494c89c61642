"""How `benchmarks.programs.strategies` sums up its rounds, and what it tells of a way that fails."""

import json
import sys

import pytest

from benchmarks.programs import strategies
from benchmarks.programs.strategies import Measured


def test_the_median_of_the_rounds_and_their_range() -> None:
    line = Measured([2.0, 1.0, 4.0], [0.9, 0.92, 0.94]).line("servers-sync")
    assert line.split(": ")[1].strip() == "2.00 s an epoch (1.00 to 4.00), accuracy 0.920"


def test_a_way_that_fails_says_why() -> None:
    assert Measured(failure="no such thing").line("mirrored").strip() == "mirrored: failed: no such thing"
    with pytest.raises(RuntimeError, match="^ValueError: out of order$"):
        strategies.together([sys.executable, "-c", "raise ValueError('out of order')"], [{}, {}])


def test_what_each_process_says_last_is_its_measurement() -> None:
    program = "import os; print('chatter'); print('{\"n\": ' + os.environ['N'] + '}')"
    told = strategies.together([sys.executable, "-c", program], [{"N": "1"}, {"N": "2"}])
    assert told == [{"n": 1}, {"n": 2}]


def test_two_workers_of_a_cluster_have_one_list_and_their_own_index() -> None:
    first, second = (json.loads(text) for text in strategies.clusters())
    assert first["cluster"] == second["cluster"] and len(set(first["cluster"]["worker"])) == 2
    assert (first["task"]["index"], second["task"]["index"]) == (0, 1)


def test_what_is_run_follows_from_the_name_of_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(
        strategies,
        "together",
        lambda command, environments: ran.append((command[3], "")) or [{}] * len(environments),
    )
    monkeypatch.setattr(
        strategies, "_on_servers", lambda command, policy: ran.append((command[3], policy)) or [{}]
    )
    for way in strategies.WAYS:
        strategies.run(way, 1, 8)
    assert ran == [
        ("plain", ""),
        ("mirrored", ""),
        ("multi-worker", ""),
        ("servers", "sync"),
        ("servers", "async"),
    ]
