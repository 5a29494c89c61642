"""`ps-lab status --watch`: the pure view of made statuses, and the command on a real cluster."""

import io
import math
import subprocess
import sys

import pytest
from rich.console import Console

from pslab.display.watch import BARS, COLUMNS, History, curve, watch_view
from pswire.v1 import coordinator_pb2 as pb
from tests.cluster.cluster import ROOT, Cluster
from tests.patience import PATIENCE


def status(second: int, *states: str, **fields: float) -> pb.StatusReply:
    reply = pb.StatusReply(
        policy="sync", optimizer="sgd", phase="training", version=second, samples=100 * second
    )
    for name, value in fields.items():
        setattr(reply, name, value)
    for number, state in enumerate(states):
        worker = reply.workers.add(name=f"w{number}", state=state, seconds=2.0)
        if state == "waiting":
            worker.waiting_for = "the others (w0 computes)"
            worker.releasers.append("w0")
    return reply


def shown(history: History, height: int = 40, width: int = 140) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(watch_view(history, height, width))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_lane_shows_what_a_worker_did_most_of_each_second() -> None:
    history = History()
    for second, states in enumerate(["computing", "waiting", "lost", "done"]):
        for quarter in range(4):
            # One quarter of another state does not count.
            history.add(second + quarter / 4, status(second, "joined" if quarter == 0 else states))
    assert history.lane("w0").plain == (COLUMNS - 4) * " " + "█░×·"


def test_curves_are_of_what_happened_in_each_second() -> None:
    history = History()
    history.add(0.0, status(0, loss=math.nan))
    history.add(1.0, status(1, applied=2, mean_staleness=1.0, loss=4.0))
    history.add(2.0, status(2, applied=4, mean_staleness=2.0, loss=2.0))
    history.add(3.0, status(2, applied=4, mean_staleness=2.0, loss=2.0))
    rates = history.rates()
    assert rates["samples/s"] == [100, 100, 0] and rates["loss"] == [4, 2, 2]
    # Four contributions of staleness 2 on average, of which the first two had 1: the others had 3.
    assert rates["staleness"][:2] == [1, 3] and math.isnan(rates["staleness"][2])


def test_a_curve_is_scaled_from_zero() -> None:
    assert curve([0, 7, math.nan, 3.5]) == f"{BARS[0]}{BARS[7]} {BARS[4]}"
    assert curve([]) == "" and curve([math.nan]) == "" and curve([0, 0]) == 2 * BARS[0]
    assert curve([-1, 1]) == f"{BARS[0]}{BARS[7]}"


def test_the_view_says_who_waits_for_whom() -> None:
    history = History()
    history.add(0.0, status(3, "computing", "waiting"))
    text = shown(history)
    assert "sync, sgd: training" in text and "waiting 2.0 s -> w0" in text
    assert "w1 has waited 2.0 s for the others" in text


def test_on_a_narrow_terminal_lanes_are_shorter_and_still_end_now() -> None:
    history = History()
    history.add(0.0, status(3, "computing", "waiting"))
    text = shown(history, width=84)
    assert "last 12 s" in text and "█  computing 2.0 s" in text and "…" not in text


def test_of_more_workers_than_lines_the_lost_and_waiting_come_first() -> None:
    history = History()
    history.add(0.0, status(3, *(50 * ["computing"]), "waiting", "lost"))
    text = shown(history, height=18)
    assert "w51" in text and "w50" in text and "+48" in text and "48 computing" in text
    assert len(text.splitlines()) <= 18


@pytest.mark.cluster
def test_the_command_follows_a_cluster_to_its_end(cluster: Cluster) -> None:
    cluster.start_servers(1, "--policy", "sync", "--workers", "1")
    watching = subprocess.Popen(
        [sys.executable, "-m", "pslab", "status", cluster.hosts, "--watch"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    first = watching.stdout.readline()
    cluster.start_worker("--task-index", "0", "--batches", "20")
    cluster.wait_end(worker_codes=[0])
    _, errors = watching.communicate(timeout=2 * PATIENCE)
    assert "waiting for workers" in first
    assert watching.returncode == 0 and "the server is gone" in errors


def test_an_address_where_nothing_is(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pslab", "status", "127.0.0.1:1", "--watch"],
        cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "nothing listens on 127.0.0.1:1" in done.stderr
