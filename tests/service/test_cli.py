"""The ps-server command: what it says, what it refuses, what it loads, and how it ends."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psworker
from pswire.exits import ExitCode
from tests.cluster.cluster import ROOT, Cluster, Process
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


# Several command lines in one process, as long as none of them starts a server.
# "TF_CONFIG", TEXT stands for that environment and no options.
DRIVER = """
import contextlib, io, json, os, sys
from psserver.cli import main
for arguments in json.loads(sys.argv[1]):
    if arguments[:1] == ["TF_CONFIG"]:
        os.environ["TF_CONFIG"] = arguments[1]
        arguments = []
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments, prog_name="ps-server")
        except SystemExit as exit:
            code = exit.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def say(cases: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """(exit code, standard output, standard error) of each command line."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(cases)],
        cwd=ROOT,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]  # type: ignore[misc]


def test_help_and_version() -> None:
    (code, text, _), (version_code, version_text, _) = say([["--help"], ["--version"]])
    assert (code, version_code) == (0, 0)
    assert version_text == f"ps-server, version {version('paramserver')}\n"
    assert "ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 0" in text
    for exit_code in ExitCode:
        assert f"{int(exit_code):>5}  {exit_code.meaning}" in text
    for option in (
        "--ps-hosts",
        "--task-index",
        "--bind",
        "--config",
        "--policy",
        "--set",
        "--out",
        "--stay",
    ):
        assert option in text


CONFIG = """
[cluster]
serversx = 2
[polcy]
name = "sync"
"""

# Options, and what standard error must hold besides exit code 2.
USAGE: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], ["expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither"]),
    "an unknown option": ([*ALONE, "--polcy", "sync"], ["--polcy", "--policy"]),
    "an unknown knob": (
        [*ALONE, "--policy", "bounded", "--set", "policy.max_stalenes=2"],
        ["policy bounded has no knob 'max_stalenes'", 'did you mean "max_staleness"'],
    ),
    "an unknown key": ([*ALONE, "--set", "cluster.wokers=2"], ["wokers", "workers"]),
    "an unknown optimizer": ([*ALONE, "--optimizer", "adm"], ["adm", "adam"]),
    "no workers": ([*ALONE, "--workers", "0"], ["--workers", "0"]),
    "a K larger than the number of workers": (
        [*ALONE, "--workers", "2", "--policy", "bounded", "--set", "policy.aggregate=5"],
        ["policy bounded: aggregate must be", "<= workers (2), got 5"],
    ),
    "a timeout of months": ([*ALONE, "--worker-timeout", "1e7"], ["--worker-timeout", "10000000"]),
    "a file without an end": ([*ALONE, "--config", "/dev/zero"], ["/dev/zero: expected at most 1048576"]),
    "no timeout": ([*ALONE, "--worker-timeout", "0"], ["--worker-timeout", "0"]),
    "no address": (["--ps-hosts", "localhost"], ["expected host:port, got 'localhost'"]),
    "auto without a scheduler": (
        ["--ps-hosts", "a:1,b:1", "--task-index", "auto"],
        ["--task-index auto: expected one of TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX"],
    ),
    "no index": (
        ["--ps-hosts", "a:1", "--task-index", "-1"],
        ["expected a number >= 0 or \"auto\", got '-1'"],
    ),
    "which of two": (["--ps-hosts", "a:1,b:1"], ["lists 2 servers: expected --task-index from 0 to 1"]),
    "a third of two": (
        ["--ps-hosts", "a:1,b:1", "--task-index", "2"],
        ["--ps-hosts lists 2 servers: expected --task-index from 0 to 1, got 2"],
    ),
    "a public address": (
        ["--ps-hosts", "192.0.2.7:7070"],
        ["the address 192.0.2.7:7070", "add --bind 192.0.2.7", "with --tls-ca", "or with --insecure"],
    ),
    "no file": ([*ALONE, "--config", "no/such.toml"], ["no/such.toml"]),
    "no checkpoint to keep": (
        [*ALONE, "--keep", "0"],
        ["--keep: expected a whole number from 1 to 9007199254740991, got 0"],
    ),
    "so many": ([*ALONE, "--keep", "few"], ["Invalid value for '--keep': 'few' is not a valid"]),
    "none by a file's key": (
        [*ALONE, "--set", "run.keep=0"],
        ["--set run.keep: expected a whole number from 1 to 9007199254740991, got 0"],
    ),
    "now and then": (
        [*ALONE, "--checkpoint-every", "5m"],
        ['--checkpoint-every: expected versions such as "1000v" or seconds such as "60s", got \'5m\'\n'],
    ),
    "resumed nowhere": ([*ALONE, "--resume", "latest"], ["--resume", "expected --out RUN"]),
    "one buffer": ([*ALONE, "--arena-versions", "1"], ["--arena-versions", "2"]),
}


def test_wrong_options_are_refused_with_the_nearest_right_one() -> None:
    for name, (code, out, err) in zip(USAGE, say([options for options, _ in USAGE.values()]), strict=True):
        assert code == ExitCode.USAGE, (name, code, err)
        assert out == "", name
        assert "Traceback" not in err, name
        for word in USAGE[name][1]:
            assert word in err, (name, err)


def test_a_wrong_file_is_refused_with_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(CONFIG)
    fine = tmp_path / "fine.toml"
    fine.write_text("[cluster]\nservers = 2\n")
    torn = tmp_path / "torn.toml"
    torn.write_text("[cluster\n")
    results = say([[*ALONE, "--config", str(p)] for p in (path, fine, torn)])
    assert [code for code, _, _ in results] == [ExitCode.USAGE] * 3
    wrong, mismatch, broken = (err for _, _, err in results)
    for word in (
        str(path),
        "2 problems",
        "cluster.serversx",
        'did you mean "servers"',
        "polcy",
        'did you mean "policy"',
    ):
        assert word in wrong, wrong
    assert "says cluster.servers = 2, but there are 1 addresses in --ps-hosts" in mismatch
    assert f"{torn}: expected TOML" in broken


def tf_config(**task: Any) -> str:
    cluster = {"ps": ["127.0.0.1:0", "127.0.0.1:1"], "chief": ["c:1"], "worker": ["w:1", "w:2"]}
    return json.dumps({"cluster": cluster, "task": task})


def test_a_wrong_tf_config() -> None:
    ((code, _, err),) = say([["TF_CONFIG", tf_config(type="worker", index=0)]])
    assert code == ExitCode.USAGE
    assert "TF_CONFIG: task.type: expected ps for a ps-server, got worker" in err


def test_tf_config_says_where_and_how_many(start: Start) -> None:
    """A chief counts as a worker; options win over the environment."""
    server = start("server", "-m", "psserver", "--json", TF_CONFIG=tf_config(type="ps", index=0))
    address = server.wait_event("ready")["address"]
    with psworker.connect(f"{address},127.0.0.1:1", {"w": np.zeros(4)}) as session:
        assert session.worker_count == 3
    server.send(signal.SIGTERM)
    assert server.wait_exit() == ExitCode.TERMINATED
    alone = start("alone", "-m", "psserver", *ALONE, TF_CONFIG=tf_config(type="worker", index=0))
    assert alone.wait_event("ready")["task_index"] == 0


def test_a_port_in_use_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        server = start("server", "-m", "psserver", "--ps-hosts", address)
        assert server.wait_exit() == ExitCode.ADDRESS_IN_USE
        assert f"ps-server: cannot listen on {address}: is another process using it?" in server.errors
        assert "Traceback" not in server.errors
        # gRPC has nothing to add.
        assert len(server.errors.splitlines()) == 1


def test_an_address_that_is_not_ours(start: Start) -> None:
    # For documentation only (RFC 5737): no machine has it.
    place, words = "192.0.2.1", "Cannot assign requested address"
    server = start("server", "-m", "psserver", "--ps-hosts", f"{place}:0", "--bind", place, "--insecure")
    assert server.wait_exit() == ExitCode.ADDRESS_IN_USE
    (line,) = server.errors.splitlines()
    assert line.startswith(f"ps-server: cannot listen on {place}:0: ") and words in line


def test_a_run_is_never_overwritten(start: Start, tmp_path: Path) -> None:
    """A mistyped --out must not cost a finished run; ps-lab's own files are no run."""
    out = tmp_path / "run"
    out.mkdir()
    (out / "experiment.toml").write_text("")
    first = start("first", "-m", "psserver", *ALONE, "--idle-timeout", "0.1", "--out", str(out))
    assert first.wait_exit() == ExitCode.ABANDONED
    before = (out / "decisions.jsonl").read_bytes()
    second = start("second", "-m", "psserver", *ALONE, "--out", str(out))
    assert second.wait_exit() == ExitCode.USAGE
    assert f"ps-server: --out {out}: holds a run already (decisions.jsonl)" in second.errors
    assert "Traceback" not in second.errors
    assert (out / "decisions.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_made(start: Start) -> None:
    server = start("server", "-m", "psserver", *ALONE, "--out", "/proc/run")
    assert server.wait_exit() == ExitCode.USAGE
    assert server.errors.splitlines()[-1].startswith("ps-server: --out /proc/run: cannot be written to: ")
    assert "Traceback" not in server.errors


def test_a_data_port_in_use_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        server = start("server", "-m", "psserver", *ALONE, "--data-port", port)
        assert server.wait_exit() == ExitCode.ADDRESS_IN_USE
        assert f"ps-server: --data-port: cannot listen on 127.0.0.1:{port}: Address already in use" in (
            server.errors
        )
        assert "by gRPC" not in server.errors
        assert "Traceback" not in server.errors


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
    ids=["SIGINT", "SIGTERM"],
)
def test_signals_end_both_servers(cluster: Cluster, number: signal.Signals, code: ExitCode) -> None:
    """The coordinator tells the others why; in the middle of training, with a worker connected."""
    hosts = cluster.start_servers(2, "--policy", "async")
    with psworker.connect(hosts, {"w": np.zeros(4)}) as session:
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


def test_a_shard_alone_ends_at_a_signal_too(start: Start) -> None:
    hosts = ("--ps-hosts", "127.0.0.1:0,127.0.0.1:0", "--task-index", "1", "--json")
    server = start("server", "-m", "psserver", *hosts)
    server.wait_event("ready")
    server.send(signal.SIGINT)
    assert server.wait_exit() == ExitCode.INTERRUPTED
    assert server.wait_event("stopped")["reason"] == "stopped by SIGINT"


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
        with psworker.connect(f"{address},{second}", {"w": np.zeros((4, 4))}) as session:
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
    with psworker.connect(server.wait_event("ready")["address"], {"w": np.zeros(4)}) as session:
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
    alone = start("alone", "-m", "psserver", *ALONE)
    alone.wait_event("ready")
    alone.send(signal.SIGTERM)
    assert alone.wait_exit() == ExitCode.TERMINATED
    assert "WARNING" not in alone.errors


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
    assert "--out and --no-out exclude each other" in ran("--no-out", "--out", "x").stderr
    for kept in (("--checkpoint-every", "10v"), ("--checkpoint-every", "5s"), ("--rescue", "x")):
        assert f"{kept[0]} keeps what a run made" in ran("--no-out", *kept).stderr
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    assert "the trained model will not be kept: no folder can be made in" in ran().stderr
