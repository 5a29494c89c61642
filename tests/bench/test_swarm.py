"""Light workers: what is made of the numbers, and real servers."""

import psutil
import pytest

from benchmarks.swarm import report
from benchmarks.swarm.cells import Cell, Measured, Terms, bare_echo, measure

NBYTES = 64


def measured(policy: str, sessions: int) -> Measured:
    burst = {
        "commits": 1000,
        "seconds": 2.0,
        "cpu": 0.1,
        "server_cpu": 0.4,
        "p50": 0.001,
        "p99": 0.01,
        "lost": 0,
    }
    return Measured(Cell(policy, sessions, 1), burst, rss=10**8)


def test_a_cell_that_failed_is_shown_with_the_others():
    broken = Measured(Cell("sync", 100, 1), failure="nobody came")
    cells = [measured("async", 10), measured("async", 100), broken]
    assert [cell.as_json()["commits_per_second"] for cell in cells] == [500.0, 500.0, None]
    assert report.failures(cells) == ["sync, 100 sessions: nobody came"]
    table = report.table(cells, [measured("echo", 10)])
    # As much CPU time as the echo with as many sessions; without an echo nothing to compare with.
    assert [str(cell) for cell in table.columns[5].cells] == ["1.00", "1.00", "-", "-"]


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        # It has ended.
        return []


@pytest.mark.cluster
def test_real_servers_serve_light_workers_and_nothing_is_left(tmp_path):
    terms = Terms(0.2, NBYTES, 60.0, tmp_path, lambda text: None)
    made = measure(Cell("sync", 5, 2), terms)
    assert not made.failure
    assert made.burst["commits"] > 0 and not made.burst["lost"]
    assert made.rss > 0
    left = [words(each) for each in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "psserver" in line or "benchmarks.swarm.generator" in line]


@pytest.mark.cluster
def test_an_echo_answers_the_same_workers(tmp_path):
    made = bare_echo(3, Terms(0.2, NBYTES, 60.0, tmp_path, lambda text: None))
    assert not made.failure and made.burst["commits"] > 0
