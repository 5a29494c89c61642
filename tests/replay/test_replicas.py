"""A real model on servers with replicas, of which the one that leads is killed: the log is read as any other."""

import json
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from pswire.decisions import entries
from tests.cluster.cluster import wait_until
from tests.cluster.launched import servers
from tests.replay.command import ps_lab
from tests.replay.test_killed_runs import ended, lab

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.timeout(600)]

EXPERIMENT = """
[run]
seed = 8
deterministic = true
[cluster]
servers = 3
workers = 2
replicas = 2
[policy]
name = "async"
[optimizer]
name = "adam"
learning_rate = 0.003
[job]
module = "tests/replay/gated_digits.py:GatedDigits"
options = { gate = "GATE" }
"""


@pytest.mark.nightly
def test_every_reader_takes_the_run_of_two_leaders(tmp_path: Path) -> None:
    out, gate, file = tmp_path / "run", tmp_path / "gate", tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.replace("GATE", str(gate)))
    log = out / "decisions.jsonl"
    with lab("run", file, "--out", out, "--quiet") as launcher:
        wait_until((out / "address").is_file, "a server is ready")
        wait_until(lambda: log.read_text().count('"join"') == 2, "two workers are there")
        wait_until(lambda: log.read_text().count('"commit"') >= 12, "they have committed")
        servers(launcher.pid, log)[0].send_signal(signal.SIGKILL)
        gate.touch()
        ended(launcher)
    run = Run(out)
    assert check_run(run).violations == ()
    facts = [line.fact for line in run.decisions()]
    assert not [fact for fact in facts if isinstance(fact, entries.Restore)]
    with lab("replay", out, "--json") as process:
        replayed = json.loads(ended(process))
    assert replayed["equal"] is True and replayed["first_difference"] is None
    assert replayed["weights_sha256"] == run.summary.weights_sha256 is not None
    assert replayed["version"] == replayed["computed"] == replayed["agreed"] == run.summary.versions > 10
    for command in (
        ("compare", out),
        ("export", out, "--trace", tmp_path / "trace.json"),
        ("export", out, "--tensorboard", tmp_path / "events"),
        ("export", out, "--to", tmp_path / "weights.npz"),
    ):
        said = ps_lab(*command)
        assert said.code == 0, said
    if find_spec("pandas") is not None:
        assert ps_lab("export", out, "--tables", tmp_path / "tables").code == 0
        rows = (tmp_path / "tables" / "versions.csv").read_text().splitlines()
        assert len(rows) == run.summary.versions + 1
