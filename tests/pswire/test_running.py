"""The clock of deadlines: no pause of a process ends a wait, and whoever runs sees all of the time."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from psserver.service.runtime import RunningLoop
from pswire import running
from pswire.running import LOOK, STEP, RunningClock
from tests.patience import PATIENCE
from tests.test_imports import PACKAGES, ROOT

# Whoever reads the system's clock, and why no deadline comes of it.
READERS = {
    "pswire/running.py": "the clock itself",
    "psserver/service/runtime.py": "the loop's, which is that clock",
    "psserver/service/net/loop.py": "the same, of the running loop",
}
# Files of servers and workers.
SERVING = [package for package in PACKAGES if package != "pslab"]


class System:
    """A system's clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_all_time_counts_while_somebody_looks() -> None:
    system = System()
    clock = RunningClock(system)
    for _ in range(600):
        system.now += LOOK
        assert clock.now() == pytest.approx(system.now)
        clock.look()
    assert clock.now() == pytest.approx(1000.0 + 600 * LOOK)


@pytest.mark.parametrize("seconds", [5.0, 15.0, 60.0, 180.0, 1e6])
def test_a_pause_counts_for_one_step(seconds: float) -> None:
    system = System()
    clock = RunningClock(system)
    deadline = clock.now() + 2 * STEP
    system.now += seconds
    # The thread that reads may wake before the one that looks.
    assert clock.now() == pytest.approx(1000.0 + STEP)
    clock.look()
    assert clock.now() == pytest.approx(1000.0 + STEP) and clock.now() < deadline
    system.now += LOOK
    assert clock.now() == pytest.approx(1000.0 + STEP + LOOK)


def test_it_never_goes_back() -> None:
    system = System()
    clock, last = RunningClock(system), 0.0
    for step in (0.0, 0.01, 0.2, 3.0, 0.1, 0.3, 0.0, 100.0, 0.05):
        system.now += step
        for look in (False, True, False):
            if look:
                clock.look()
            assert clock.now() >= last
            last = clock.now()


def test_a_loops_timers_count_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    system = System()
    clock = RunningClock(system)
    monkeypatch.setattr(running, "now", clock.now)
    loop = RunningLoop()
    fired: list[str] = []
    loop.call_later(2 * STEP, fired.append, "late")
    # The process stands still for an hour.
    system.now += 3600.0
    clock.look()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert not fired
    system.now += STEP
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert fired == ["late"]
    loop.close()


FORKED = f"""
import os, threading
from pswire import running

running.now()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
else:
    before, pause = running.now(), threading.Event()
    while running.now() < before + {3 * STEP}:
        pause.wait({LOOK})
    os._exit(0)
"""


def test_the_clock_of_a_forked_process_goes_on() -> None:
    """In a process of its own: libraries that other tests load do not allow a fork."""
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=PATIENCE)


def system_clocks(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a file that reads another clock of deadlines, or makes a loop with one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            inner = node.value.attr if isinstance(node.value, ast.Attribute) else owner
            called = node.value.func if isinstance(node.value, ast.Call) else None
            of_loop = inner.endswith("loop") or (
                isinstance(called, ast.Attribute) and called.attr.endswith("_loop")
            )
            if (owner, node.attr) in {("time", "monotonic"), ("time", "monotonic_ns")}:
                yield node.lineno, f"{owner}.{node.attr}"
            elif of_loop and node.attr == "time":
                yield node.lineno, "time of a loop"
            elif owner == "asyncio" and node.attr in ("new_event_loop", "run", "Runner"):
                yield node.lineno, f"asyncio.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from ((node.lineno, f"time.{n.name}") for n in node.names if n.name.startswith("monotonic"))


def test_servers_and_workers_have_one_clock_of_deadlines() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for package in SERVING
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in READERS
        for line, what in system_clocks(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"use pswire.running.now, which no pause of the process makes jump: {found}"
