"""`ps-lab export --trace`: every rule of the format holds, and the numbers are the log's."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pslab.cli import cli
from pslab.observe.trace import NAMES
from pslab.runs.folder import Run
from pslab.runs.log import Line
from pslab.runs.work import COMPUTING, RECEIVING, SENDING, WASTED
from psserver.decisions import entries as facts
from tests.cluster.cluster import Cluster
from tests.compare.test_timeline import three_commits
from tests.lab.waits import spent
from tests.observe import trace_format
from tests.observe.trace_format import Event
from tests.replay.simulated import simulate

TRACE = "trace.json"
LINKS = {"latency": 0.125, "bandwidth": 4e6}
TIMED = {"problem": "none", "payload_bytes": 1_000_000, "batches": 20}


def traced(run: Run) -> list[Event]:
    """The trace that the command writes, once it has kept every rule."""
    done = CliRunner().invoke(cli, ["export", str(run.path), "--trace", str(run.path / TRACE)])
    assert done.exit_code == 0, done.output
    events = trace_format.events_of(run.path / TRACE)
    assert done.stdout == f"trace: {run.path / TRACE} ({len(events)} events)\n"
    trace_format.check(events)
    return events


def named(events: list[Event], phase: str, start: str = "") -> list[Event]:
    return [e for e in events if e["ph"] == phase and e["name"].startswith(start)]


def test_a_hand_made_log(tmp_path: Path) -> None:
    events = traced(three_commits(tmp_path / "run"))
    lanes = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert lanes == {"w0": 1, "w1": 2}
    tickets = {e["args"]["ticket"]: e for e in named(events, "X", "ticket ")}
    assert {t: (e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for t, e in tickets.items()} == {
        2: (1, 1.0, 6.0), 3: (1, 10.0, 2.0), 4: (1, 12.0, 3.0), 5: (2, 8.0, 2.0), 6: (2, 10.0, 2.5), 7: (2, 16.0, 4.0)
    }  # fmt: skip
    assert tickets[4]["args"] == {
        "ticket": 4, "from version": 1, "fate": "applied in version 2", "staleness": 0, "weight": 1.0,
        "samples": 8, "loss": 0.5,
    }  # fmt: skip
    assert tickets[3]["args"]["fate"] == "dropped" and tickets[3]["args"]["reason"] == "stale"
    assert [e["cat"] for e in named(events, "i")] == [
        "join", "join", "cancel", "drop", "abandon", "done", "done", "stop"
    ]  # fmt: skip
    assert named(events, "i")[-1]["name"] == "the job stops at version 3: all workers are done"
    assert {e["id"] for e in named(events, "s")} == {2, 4, 7}
    assert [e["args"] for e in named(events, "C", "staleness")] == 3 * [{"mean": 0.0, "max": 0}]
    assert named(events, "C", "pending")[-1]["args"] == {"value": 0}


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("sync", {"backup": 1}),
        ("async", {}),
        ("bounded", {"aggregate": 2, "max_staleness": 1}),
        ("ssp", {}),
        ("easgd", {}),
    ],
)
def test_a_simulated_run(tmp_path: Path, policy: str, knobs: dict[str, Any]) -> None:
    run = simulate(tmp_path / "run", policy, knobs, simulation=TIMED, links=LINKS)
    agrees_with_the_log(run, traced(run))


def test_updates_of_one_instant_follow_each_other(tmp_path: Path) -> None:
    """Workers of exactly the same speed on a network without delay: many things happen at once."""
    simulation = {"problem": "none", "batches": 5, "compute": "constant(1)"}
    run = simulate(tmp_path / "run", "async", simulation=simulation, cluster={"workers": 50})
    agrees_with_the_log(run, traced(run))


def test_crashes_and_returns_are_marks(tmp_path: Path) -> None:
    faults = {
        "crashes": [{"worker": 1, "at": 5.0, "restart": 3.0}, {"worker": 2, "at": 6.0, "silent": True}],
        "disconnects": [{"worker": 0, "at": 7.0, "seconds": 1.0}],
    }
    simulation = {"problem": "none", "batches": 20, "compute": "exponential(1)"}
    run = simulate(tmp_path / "run", "async", simulation=simulation, faults=faults)
    events = traced(run)
    agrees_with_the_log(run, events)
    marks = Counter(e["cat"] for e in named(events, "i"))
    kinds = Counter(entry.kind for entry in run.decisions())
    for kind in ("join", "lost", "back", "leave", "done", "stop"):
        assert marks[kind] == kinds[kind]
    assert marks["lost"] and marks["leave"]


@pytest.mark.cluster
def test_a_real_run(cluster: Cluster) -> None:
    cluster.start_servers(2, "--policy", "bounded", "--workers", "2", "--set", "policy.max_staleness=1")
    for index, seconds in enumerate((0.004, 0.02)):
        cluster.start_worker("--task-index", str(index), "--batches", "20", "--seconds", str(seconds))
    run = cluster.wait_end(worker_codes=[0, 0])
    agrees_with_the_log(run, traced(run))


def agrees_with_the_log(run: Run, events: list[Event]) -> None:
    """One flow for each applied contribution, a slice for each update, and every second where the timeline has it."""
    applied = [p.ticket for e in run.decisions() if isinstance(e.fact, facts.Apply) for p in e.fact.parts]
    dropped = [e.fact.ticket for e in run.decisions() if isinstance(e.fact, facts.Drop)]
    assert sorted(e["id"] for e in named(events, "s")) == sorted(applied)
    assert sorted(e["args"]["ticket"] for e in named(events, "i") if e["cat"] == "drop") == sorted(dropped)
    assert len(named(events, "X", "version ")) == run.summary.versions
    assert named(events, "C", "version")[-1]["args"]["value"] == run.summary.versions
    ages = Counter(e["args"]["staleness"] for e in named(events, "f"))
    assert ages == run.summary.histogram

    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    seconds: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event["ph"] == "X" and event["pid"] == 1:
            seconds[names[event["tid"]], event["name"]] += event["dur"] / 1e6
    for (worker, kind), expected in spent(run).items():
        if kind in (COMPUTING, RECEIVING, SENDING, WASTED):
            assert seconds[worker, NAMES[kind]] == pytest.approx(expected, abs=1e-4), kind


def cut(run: Run, change: Callable[[str], str]) -> None:
    run.log.write_text(change(run.log.read_text(encoding="utf-8")), encoding="utf-8")


def test_the_trace_of_a_run_that_was_killed_ends_with_its_last_whole_line(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMED)
    (run.path / "summary.json").unlink()
    cut(run, lambda text: text[: text.index("\n", len(text) // 2) - 5])
    done = CliRunner().invoke(cli, ["export", str(run.path), "--trace", str(run.path / TRACE)])
    assert done.exit_code == 0 and "bytes behind it" in done.stderr
    events = trace_format.events_of(run.path / TRACE)
    trace_format.check(events)
    whole = sum(isinstance(line, Line) and line.kind == "commit" for line in run.lines())
    told = [e for e in named(events, "X", "ticket ") if "loss" in e["args"]]
    assert len(told) == whole > 10


def test_a_damaged_log_is_refused_and_no_trace_is_left(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMED)
    cut(run, lambda text: text.replace('"kind":"commit"', '"kind":"comit"', 1))
    done = CliRunner().invoke(cli, ["export", str(run.path), "--trace", str(run.path / TRACE)])
    assert done.exit_code != 0 and "unknown kind 'comit'" in done.stderr
    assert not list(run.path.glob("trace.json*"))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", "async", simulation=TIMED)
    done = CliRunner().invoke(cli, ["export", str(run.path), "--trace", str(tmp_path / "no" / "t.json")])
    assert done.exit_code != 0 and "cannot be written: No such file" in done.stderr
