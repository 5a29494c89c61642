"""Jobs with replicas on machines, each with a clock of its own: a server or a machine is lost, and nobody goes back."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.replicated_run import EXPERIMENT, GATES, sha256
from tests.engines.sites import ROOT, running
from tests.lab.test_local import assert_gone
from tests.machines.clusters import ENGINES, Spread
from tests.machines.conftest import site
from tests.machines.machines import Machine
from tests.patience import PATIENCE
from tests.promises import promise
from tests.repetitions import usually

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.timeout(600)]

COPIES = ("--replicas", "2", "--set", "cluster.servers=3")


def experiment(folder: Path) -> str:
    """The path of its file. The workers stand still before each of GATES until there is a file of that number."""
    folder.mkdir(exist_ok=True)
    gates = ", ".join(f'"--gate", "{step}", "{folder / str(step)}"' for step in GATES)
    (folder / "experiment.toml").write_text(EXPERIMENT.replace("GATES", gates))
    return str(folder / "experiment.toml")


def whole(status: Mapping[str, Any], version: int) -> bool:
    """Whether the job is at that version or beyond, with both copies in sync and the third server there."""
    states = {server["state"] for server in status["servers"]}
    return status["version"] >= version and states == {"leads", "in sync", "votes"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of the run on this machine, without replicas."""
    folder = tmp_path_factory.mktemp("alone")
    lab = [sys.executable, "-m", "pslab", "run", experiment(folder), "--out", str(folder / "run"), "--quiet"]
    for gate in GATES:
        (folder / str(gate)).touch()
    done = subprocess.run(lab, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return sha256(folder)


@pytest.fixture(params=usually(["ssh"], list(ENGINES)))
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spread]:
    """For one test, which breaks it."""
    with site(request.param, tmp_path / request.param) as place:
        yield place


def lose(place: Spread, number: int) -> Machine:
    """Kill what holds a server on its machine, so that nothing can be told to it. Return the machine."""
    machine, server = place.server(number)
    # Of Slurm the step: another one may have a worker there, which would be lost for good.
    for agent in [each for each in place.agents(machine) if each in server.parents()]:
        agent.kill()
    assert_gone([server.pid])
    return machine


@promise("Over several machines, losing a server and then a node leaves the weights of an undisturbed run.")
def test_a_server_and_then_two_nodes_are_lost_and_the_weights_are_those_of_a_run_without(
    fresh: Spread, tmp_path: Path, undisturbed: str
) -> None:
    """The server that leads is killed and gets a copy again; then the nodes of those that lead next are lost, one after
    the other. Their servers get copies on other ones."""
    folder, out = tmp_path / "job", tmp_path / "job" / "run"
    command = fresh.run(experiment(folder), "--out", str(out), *COPIES)
    with running(command, fresh.environment) as run:
        hosts = {str(run.until(f"server-{n}", "ready")["address"]).rpartition(":")[0] for n in range(3)}
        assert len(hosts) == 3
        run.until_status(lambda status: whole(status, GATES[0]), "two copies")
        fresh.server(0)[1].kill()
        (folder / str(GATES[0])).touch()
        run.until_status(lambda status: whole(status, GATES[1]), "two copies again")
        former = lose(fresh, 1)
        (folder / str(GATES[1])).touch()
        run.until_status(lambda status: whole(status, GATES[2]), "two copies, one of them on another machine")
        places = fresh.server(0)[0], fresh.server(1)[0]
        apart = places[0] is not places[1]
        # Ray chooses by itself.
        assert places[1] is not former and (apart or fresh.engine == "ray")
        if apart:
            lose(fresh, 0)
        (folder / str(GATES[2])).touch()
        end = run.end()
    assert (run.process.returncode, end["code"]) == (0, 0), end
    assert sha256(folder) == undisturbed
    assert len(list(out.glob("decisions.before-epoch-*.jsonl"))) == 2 + apart
