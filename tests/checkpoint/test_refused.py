"""A resume that is refused, or that a signal ends before all servers are there, costs nothing of the run."""

import hashlib
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from psserver.checkpoint import CheckpointError, Store
from psserver.cli import main
from psserver.options import Options
from psserver.service.server import Server
from psserver.service.store.resume_point import succeeded
from psserver.settings import resolve
from pswire.exits import ExitCode
from tests.checkpoint.test_copying import ADAM, saved, start, step
from tests.sentences import Recorder
from tests.service.serving import Served, serving, wait_until


def trained(out: Path) -> None:
    """A run of three versions and more, each of which is saved."""
    with serving(out=out, overrides=ADAM) as cluster, start(cluster) as session:
        for version in range(1, 4):
            step(session, cluster.servers[0].probe)
            wait_until(lambda expected=version: expected in saved(out), f"version {version} to be saved")


def files(out: Path) -> dict[Path, str]:
    """Digests of all but what counts attempts."""
    own = {".lock", "generation", "address"}
    found = [path for path in out.rglob("*") if path.is_file() and path.name not in own]
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.parametrize("which", ["oldest", "latest"])
def test_a_checkpoint_for_which_there_is_no_memory_leaves_the_run_as_it_was(
    tmp_path: Path, which: str, sentences: Recorder
) -> None:
    """Log, weights, and the newer checkpoints of the log: with more memory it goes on."""
    out = tmp_path / "run"
    trained(out)
    before = files(out)
    assert {"decisions.jsonl", "summary.json", "weights.safetensors"} <= {path.name for path in before}
    name = Store(out / "checkpoints").names()[0] if which == "oldest" else which
    little = Options(
        ps_hosts="127.0.0.1:0",
        task_index=0,
        out=out,
        overrides=(*ADAM, "policy.name=async"),
        resume=name,
        memory_limit="1MiB",
    )
    with sentences.raises(CheckpointError):
        Server(resolve(little, None), lambda *_: None).run()
    assert files(out) == before


def test_a_signal_waits_for_no_server_that_has_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it would give is saved already; a supervisor kills who does not end."""
    out = tmp_path / "run"
    trained(out)
    # Bound and not listening: nobody answers there, and nobody else gets the port.
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        hosts = f"127.0.0.1:0,127.0.0.1:{place.getsockname()[1]}"
        chosen = (*ADAM, "policy.name=async")
        server = Served(Options(ps_hosts=hosts, task_index=0, out=out, overrides=chosen, resume="latest"))
        wait_until(lambda: "cannot be reached" in caplog.text, "server 0 to miss the other")
        server.interrupt()
        assert server.ended() == ExitCode.TERMINATED
    assert "server 1 is not there; no final weights" in caplog.text
    with serving(out=out, overrides=ADAM, resume="latest") as cluster, start(cluster) as session:
        step(session, cluster.servers[0].probe)


def test_a_restart_of_a_job_that_has_succeeded_changes_nothing(tmp_path: Path) -> None:
    """A supervisor starts server 0 with the command that it always had."""
    out = tmp_path / "run"
    with serving(out=out, overrides=ADAM) as cluster, start(cluster) as session:
        step(session, cluster.servers[0].probe)
        session.done()
        session.close()
        assert cluster.servers[0].ended() == ExitCode.OK
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    overrides = [word for override in ADAM for word in ("--set", override)]
    said = CliRunner().invoke(
        main, ["--ps-hosts", "127.0.0.1:0", "--out", str(out), "--resume", "auto", *overrides]
    )
    assert said.exit_code == ExitCode.OK, said.output
    assert "has succeeded before (version 1" in said.output
    # The others do not wait for it.
    hosts = ["--ps-hosts", "127.0.0.1:0,127.0.0.1:0", "--task-index", "1"]
    said = CliRunner().invoke(main, [*hosts, "--out", str(out), "--resume", "auto", *overrides])
    assert said.exit_code == ExitCode.OK, said.output
    # Without --resume it would be a new run.
    said = CliRunner().invoke(main, ["--ps-hosts", "127.0.0.1:0", "--out", str(out), *overrides])
    assert said.exit_code == ExitCode.USAGE and "has succeeded already (version 1" in said.output
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    # One that was not seen to its end is not over.
    summary = out / "summary.json"
    summary.write_text(summary.read_text().replace('"concluded": true', '"concluded": false'))
    assert succeeded(out) is None
