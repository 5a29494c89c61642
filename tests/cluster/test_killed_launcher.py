"""`ps-lab run` is killed: its processes end with it, and none of them goes on with fewer workers before it ends."""

import os
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import psutil
import pytest

from pslab.runs.folder import Run
from psserver.decisions import entries
from tests.cluster.cluster import PATIENCE, ROOT, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# How long a barrier waits for a worker whose connection breaks does not depend on how busy the machine is.
LONG = ("--set", "cluster.worker_timeout=60.0")
# Without an end, and so fast that many updates come between the ends of two workers.
SCRIPT = """
import numpy as np
import psworker

with psworker.connect(None, {"w": np.zeros(4, np.float32)}, optimizer={"name": "sgd"}) as session:
    for turn in session.turns():
        turn.send({"w": np.ones(4, np.float32)}, samples=1)
"""


def test_no_update_has_fewer_workers_when_the_launcher_is_killed(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "pslab",
        "run",
        "--script",
        script,
        "--workers",
        "3",
        "--out",
        out,
        "--quiet",
    ]
    with subprocess.Popen(
        [str(part) for part in [*command, "--policy", "sync", *LONG]],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    ) as launcher:
        try:
            log = out / "decisions.jsonl"
            wait_until(lambda: log.is_file() and log.read_text().count('"apply"') > 20, "updates are made")
            processes = psutil.Process(launcher.pid).children(recursive=True)
            assert len(processes) >= 4
        finally:
            launcher.kill()
        assert launcher.wait() == -signal.SIGKILL
    _, left = psutil.wait_procs(processes, timeout=PATIENCE)
    assert not left
    facts = [entry.fact for entry in Run(out).decisions()]
    # A server that ends before the workers stops the job; they leave behind that.
    facts = list(takewhile(lambda fact: not isinstance(fact, entries.Stop), facts))
    assert not [fact for fact in facts if isinstance(fact, entries.Leave)]
    updates = [fact for fact in facts if isinstance(fact, entries.Apply)]
    assert len(updates) > 20 and {len(update.parts) for update in updates} == {3}
