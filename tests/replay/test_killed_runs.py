"""Real processes, a real model: an asynchronous run whose servers are killed, executed again across that."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.decisions import entries
from tests.cluster.cluster import PATIENCE, ROOT, wait_until
from tests.cluster.launched import servers
from tests.repetitions import usually

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

EXPERIMENT = """
[run]
checkpoint_every = "5 versions"
seed = 8
deterministic = true
[cluster]
servers = 2
workers = 2
[policy]
name = "async"
[optimizer]
name = "adam"
learning_rate = 0.003
[job]
module = "tests/replay/gated_digits.py:GatedDigits"
options = { gate = "GATE" }
"""


@contextmanager
def lab(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """It has ended behind the block, and is killed there where the test has failed."""
    with subprocess.Popen(
        [sys.executable, "-m", "pslab", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What it said, once it has ended with that code."""
    said, _ = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == code, said
    return said


def complete(run: Path) -> int:
    return len(list(run.glob("checkpoints/*/manifest.json")))


@pytest.mark.parametrize(
    "all_of_them", usually([False], soak=[True]), ids={False: "recovered", True: "resumed"}.get
)
def test_it_is_executed_again_to_the_same_bits(tmp_path: Path, all_of_them: bool) -> None:
    """All servers are killed, and the run goes on in three new ones; or one is, and it goes on in the others."""
    out, gate, file = tmp_path / "run", tmp_path / "gate", tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.replace("GATE", str(gate)))
    run = ("run", file, "--out", out, "--quiet", "--restarts", 0 if all_of_them else 3)
    with lab(*run) as launcher:
        # One thing after another: TensorFlow is loaded, a graph is traced.
        wait_until((out / "address").is_file, "a server is ready")
        wait_until(
            lambda: (out / "decisions.jsonl").read_text().count('"join"') == 2, "two workers are there"
        )
        for number in (1, 2):
            wait_until(lambda wanted=number: complete(out) >= wanted, f"{number} checkpoints are complete")
        for server in servers(launcher.pid, out / "decisions.jsonl")[: 2 if all_of_them else 1]:
            server.send_signal(signal.SIGKILL)
        gate.touch()
        ended(launcher, 3 if all_of_them else 0)
    if all_of_them:
        with lab(*run, "--resume", "latest", "--servers", 3) as launcher:
            ended(launcher)
    after = Run(out)
    assert check_run(after).violations == ()
    (restore,) = [entry.fact for entry in after.decisions() if isinstance(entry.fact, entries.Restore)]
    assert after.summary.versions > restore.version > 0
    with lab("replay", out, "--json") as process:
        replayed = json.loads(ended(process))
    assert replayed["equal"] is True and replayed["first_difference"] is None
    assert replayed["weights_sha256"] == after.summary.weights_sha256 is not None
    assert replayed["version"] == after.summary.versions
    assert replayed["agreed"] == replayed["computed"] > 10
