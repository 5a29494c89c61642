"""The ps-server command as a process: what it says, what it loads, and how it ends."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from pswire.exits import ExitCode
from tests.cluster.cluster import ROOT, Cluster, Process
from tests.links import connect_link
from tests.service.serving import PATIENCE, granted, wait_until

pytestmark = pytest.mark.cluster

ALONE = ("--ps-hosts", "127.0.0.1:0", "--json")


Start = Callable[..., Process]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """python OPTIONS... as process `name`."""
    with ExitStack() as started:

        def launch(name: str, *options: str, **environment: str) -> Process:
            process = cluster.launch(name, *options, **environment)
            started.callback(process.close)
            return process

        yield launch


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
    ids=["SIGINT", "SIGTERM"],
)
def test_signals_end_both_servers(cluster: Cluster, number: signal.Signals, code: ExitCode) -> None:
    """The coordinator tells the others why; in the middle of training, with a worker connected."""
    hosts = cluster.start_servers(2, "--policy", "async")
    with connect_link(hosts, {"w": np.zeros(4)}) as session:
        granted(session)
        cluster.servers[0].send(number)
        wait_until(lambda: session.stop, "the worker to hear of the stop")
        assert session.stop is not None
        assert not session.stop.success
        assert session.stop.reason == f"stopped by {number.name}"
    for server in cluster.servers:
        assert server.wait_exit() == code, server.errors
        stopped = server.wait_event("stopped")
        assert (stopped["exit_code"], stopped["reason"]) == (code, f"stopped by {number.name}")
        assert "Traceback" not in server.errors


def test_a_server_that_is_not_there_is_named_again_and_again(start: Start) -> None:
    """With growing pauses, until it comes; the job then begins."""
    # Bound and not listening: nobody answers there, and the port is given to nobody else, before or after server 1 has
    # it.
    with socket.socket() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        second = f"127.0.0.1:{place.getsockname()[1]}"
        hosts = ("--ps-hosts", f"127.0.0.1:0,{second}", "--task-index", "0", "--json")
        first = start("first", "-m", "psserver", *hosts)
        address = first.wait_event("ready")["address"]
        sentence = f"server 1 at {second} cannot be reached"
        wait_until(lambda: first.errors.count(sentence) >= 2, "two warnings")
        tried = re.findall(rf"{re.escape(sentence)} \(tried for ([\d.]+) s, still trying\)", first.errors)
        # Pauses of half a second and of one; a busy machine adds to them.
        assert float(tried[0]) >= 0.5 and float(tried[1]) >= float(tried[0]) + 1.0
        hosts = ("--ps-hosts", f"{address},{second}", "--task-index", "1", "--json")
        other = start("second", "-m", "psserver", *hosts)
        other.wait_event("ready")
        with connect_link(f"{address},{second}", {"w": np.zeros((4, 4))}) as session:
            assert session.ready() is not None
            session.done()
        assert (first.wait_exit(), other.wait_exit()) == (0, 0)


MODULES = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps({"event": "modules", "names": sorted(sys.modules)}), flush=True))
from psserver.cli import main
main(sys.argv[1:])
"""


def test_a_server_that_has_trained_never_loaded_what_it_does_not_need(cluster: Cluster, start: Start) -> None:
    server = start("server", "-c", MODULES, *ALONE, "--optimizer", "adam", "--out", str(cluster.out))
    with connect_link(server.wait_event("ready")["address"], {"w": np.zeros(4)}) as session:
        for _ in range(3):
            grant = granted(session)
            session.pull(grant)
            session.push(grant, {"w": np.ones(4)})
            session.commit(grant, samples=1, loss=1.0)
        session.done()
    assert server.wait_exit() == 0, server.errors
    names = set(server.wait_event("modules")["names"])
    assert "psserver.service.server" in names
    assert not names & {"tensorflow", "keras", "psworker", "pslab", "matplotlib", "sklearn", "pytest"}


def test_a_server_that_others_reach_says_so(start: Start) -> None:
    everywhere = ("--bind", "0.0.0.0", "--insecure", "--json")
    server = start("server", "-m", "psserver", "--ps-hosts", "127.0.0.1:0", *everywhere)
    server.wait_event("ready")
    said = "WARNING listening on every interface without TLS (--insecure)"
    wait_until(lambda: said in server.errors, "a warning")


def test_a_server_without_a_folder_makes_one_and_says_so(tmp_path: Path) -> None:
    """At the beginning and at the end; where none can be made a warning says what is lost."""
    command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--idle-timeout", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CONFIG", None)

    def ran(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    done = ran()
    assert done.returncode == ExitCode.ABANDONED, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"run folder: {folder}\n" in done.stdout
    assert done.stdout.endswith(f"log and summary, no weights: {folder}\n")
    assert (folder / "summary.json").is_file() and (folder / "decisions.jsonl").is_file()
    assert (folder / "address").read_text().startswith("127.0.0.1:")
    assert "folder" not in ran("--no-out").stdout and list((tmp_path / "runs").iterdir()) == [folder]
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    assert "the trained model will not be kept: no folder can be made in" in ran().stderr
