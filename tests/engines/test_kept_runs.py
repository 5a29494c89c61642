"""A whole run whose processes are behind keepers: the same course, verdict and folder as on this machine."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pslab.check.checker import check_run
from pslab.experiment import Experiment
from pslab.launch.engines.launcher import EngineError
from pslab.launch.engines.registry import EngineOptions, launcher_for
from pslab.launch.tasks import Daemons
from pslab.runs.folder import Run
from pswire.exits import ExitCode
from tests.engines.here import ROOT, HereLauncher, fakes, run_here
from tests.lab.drive import experiment
from tests.lab.test_local import Notes, assert_gone
from tests.patience import PATIENCE
from tests.promises import promise

NUMPY = {
    "cluster": {"servers": 2, "workers": 2, "worker_timeout": 10.0},
    "policy": {"name": "async"},
    "optimizer": {"name": "sgd"},
    "job": {"script": "tests/cluster/numpy_worker.py", "arguments": ["--batches", "20"]},
}


@pytest.mark.cluster
def test_from_start_to_end(tmp_path: Path) -> None:
    notes = Notes()
    finished = run_here(tmp_path / "run", fakes(), display=notes)
    assert finished.result.ok and finished.result.warnings == ()
    first, second = notes.said("server-0", "ready"), notes.said("server-1", "ready")
    assert first["hosts"] == f"127.0.0.1:0,{second['address']}"
    assert '"event": "ready"' in (finished.folder / "logs" / "server-0.log").read_text()
    # What told the keepers that they see the folder is gone.
    assert sorted(path.name for path in finished.folder.iterdir()) == ["experiment.toml", "logs"]
    assert_gone(notes.pids())


@pytest.mark.cluster
@pytest.mark.parametrize("nodes", [1, 2])
def test_both_copies_on_one_node_are_warned_of(tmp_path: Path, nodes: int) -> None:
    what, notes = experiment(replicas=2), Notes()
    finished = run_here(
        tmp_path / "run", fakes(server="all"), HereLauncher(nodes=nodes), display=notes, what=what
    )
    assert finished.result.ok
    warned = [sentence for sentence, _ in notes.warnings if "both copies" in sentence]
    expected = ["both copies are on node n1: its loss would end the job"] if nodes == 1 else []
    assert warned == expected == list(finished.result.warnings)


class Losing(Notes):
    """Kills a keeper of server 1 with all that it holds, once everything runs, and ends the run once that server is
    there again."""

    def event(self, name: str, event: dict[str, Any]) -> None:
        super().event(name, event)
        if event["event"] == "computing" and self._count("computing") == 3:
            server = psutil.Process(self.said("server-1", "ready")["pid"])
            keeper = server.parent()
            assert keeper is not None
            keeper.kill()
            server.kill()
        if self._count("ready") == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    def _count(self, kind: str) -> int:
        return sum(event["event"] == kind for _, event in self.events)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("nodes", "spread", "where"),
    [
        pytest.param(3, False, "on n3", marks=pytest.mark.nightly),
        (3, True, "on n2, for no other node has room"),
    ],
)
def test_a_server_whose_node_is_lost_starts_on_another_one(
    tmp_path: Path, nodes: int, spread: bool, where: str
) -> None:
    notes, document = Losing(), tomllib.loads(experiment(replicas=2).to_toml())
    document["cluster"]["place"] = {"servers": {"spread": spread}}
    what = Experiment.parse(document, "test")
    finished = run_here(
        tmp_path / "run", fakes("stay", "hang"), HereLauncher(nodes=nodes), display=notes, what=what
    )
    assert finished.result.verdict.code == 143
    [restarted] = [warning for warning in finished.result.warnings if "started again" in warning]
    assert restarted == (
        f"server-1 exited with code 3 (a server cannot be reached or was lost); started again {where} "
        "(1 of at most 6 times)"
    )
    # It was given no address of its own, and starts wherever it is.
    again = [event["hosts"] for name, event in notes.events if name == "server-1" and "hosts" in event][-1]
    assert again.split(",")[1] == "127.0.0.1:0" and "127.0.0.1:0" not in again.split(",")[::2]
    assert_gone(notes.pids())


@pytest.mark.cluster
def test_servers_with_replicas_are_not_started_where_they_do_not_see_the_run_folder(tmp_path: Path) -> None:
    finished = run_here(tmp_path / "run", fakes(), HereLauncher(sees=False), what=experiment(replicas=2))
    assert not finished.result.ok
    assert "is not the run folder" in (finished.folder / "logs" / "server-1.log").read_text()


@pytest.mark.cluster
def test_processes_that_have_no_room_are_not_started(tmp_path: Path) -> None:
    finished = run_here(tmp_path / "run", fakes(), HereLauncher(cpus=2))
    verdict = finished.result.verdict
    assert verdict.code == ExitCode.UNREACHABLE
    assert verdict.reason == (
        "no room for worker-2 of 5 processes: wanted 1 cpu; still available: n1 0 of 2 cpus, n2 0 of 2 cpus"
    )
    assert list((finished.folder / "logs").iterdir()) == []


@pytest.mark.cluster
def test_a_place_that_does_not_come_ends_the_run_in_time(tmp_path: Path) -> None:
    finished = run_here(tmp_path / "run", fakes(), HereLauncher(wait=0.3, keeper=["sleep", "600"]))
    verdict = finished.result.verdict
    assert verdict.code == ExitCode.UNREACHABLE
    assert verdict.reason.startswith("server-1 found no place on n1") and "within 0.3 s" in verdict.reason


@contextmanager
def driven(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A run in a process of its own whose three workers compute; and the numbers of all daemons."""
    command = [sys.executable, "-m", "tests.engines.drive", str(folder), "stay", "hang"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids, computing = list[int](), 0
        for line in process.stdout:
            said = json.loads(line).get("said", {})
            pids += [said["pid"]] if "pid" in said else []
            computing += said.get("event") == "computing"
            if computing == 3:
                break
        try:
            yield process, pids
        finally:
            process.kill()


@promise("No process is left behind, however the launcher ends.")
@pytest.mark.cluster
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_however_the_launcher_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with driven(tmp_path / "run") as (process, pids):
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert_gone(pids)
    # The certificate for who looks: a killed run cannot remove it.
    assert (tmp_path / "run" / "observer").exists() == (number == signal.SIGKILL)


@pytest.mark.cluster
def test_a_real_job_leaves_a_whole_folder(tmp_path: Path) -> None:
    what = Experiment.parse(NUMPY, "test")
    finished = run_here(tmp_path / "run", Daemons(), HereLauncher(sees=False), what=what)
    assert finished.result.ok, finished.result
    run = Run(finished.folder)
    assert check_run(run).ok and run.summary.versions == 40
    assert (finished.folder / "weights.safetensors").stat().st_size > 4000


@pytest.mark.parametrize(
    ("document", "options", "words"),
    [
        ({"run": {"engine": "sllurm"}}, EngineOptions(), 'engine "sllurm" is unknown; did you mean "slurm"'),
        ({"run": {"engine": "ssh"}}, EngineOptions(), "expected --hosts h0,h1:4 or cluster.hosts"),
        (
            {"run": {"engine": "slurm"}},
            EngineOptions(hosts=("h0",)),
            "--hosts: expected engine ssh, got engine slurm",
        ),
        ({"run": {"engine": "slurm"}}, EngineOptions(), "engine slurm needs Slurm's command srun"),
        ({"run": {"engine": "ssh"}}, EngineOptions(hosts=("h0", "h0:2")), "h0 is named twice: expected h0:N"),
    ],
)
def test_an_engine_that_cannot_be_had_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    document: dict[str, object],
    options: EngineOptions,
    words: str,
) -> None:
    (tmp_path / "ssh").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    experiment = Experiment.parse({**NUMPY, **document}, "test")
    with pytest.raises(EngineError) as refused:
        launcher_for(experiment, options, ROOT)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "place", "key"),
    [
        ("local", {"workers": {"gpus": 1}}, "workers.gpus"),
        ("ssh", {"servers": {"memory": "4GiB"}}, "servers.memory"),
    ],
)
def test_an_engine_refuses_what_it_cannot_promise(engine: str, place: dict[str, object], key: str) -> None:
    document = {**NUMPY, "run": {"engine": engine}, "cluster": {**NUMPY["cluster"], "place": place}}
    with pytest.raises(
        EngineError, match=f"cluster.place.{key}: engine {engine} cannot guarantee.*slurm can"
    ):
        launcher_for(Experiment.parse(document, "test"), EngineOptions(hosts=("h",)), ROOT)
