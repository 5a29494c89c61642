"""A finished run under TLS has left no secret anywhere: files, logs, command lines, help, errors."""

import base64
import os
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import psworker.cli
from pslab.cli import cli as lab
from psserver import cli as server
from psserver.options import Options
from psserver.settings import resolve
from pswire.security.credentials import Credentials, LiveIdentity
from pswire.security.names import Role
from pswire.security.secret import Secret
from tests.cluster.cluster import Process
from tests.promises import promise
from tests.security.identities import Identities
from tests.security.processes import ProtectedCluster

pytestmark = pytest.mark.cluster


def secrets_of(key: bytes) -> list[str]:
    """A private key's lines, and what they encode."""
    body = re.sub(r"-----.*?-----|\s", "", key.decode())
    return [*(line for line in key.decode().splitlines() if not line.startswith("---")), body]


@pytest.fixture
def planted(identities: Identities) -> list[str]:
    """Every secret of the run below."""
    found = [secrets.token_hex(32)]
    for role, name in ((Role.SERVER, "server-0"), (Role.SERVER, "server-1"), (Role.WORKER, "w0")):
        found += secrets_of(identities.files(role, name).read().key.reveal())
    return found


def leaks(text: bytes, planted: list[str]) -> list[str]:
    return [secret for secret in planted if secret.encode() in text or _decoded(secret) in text]


def _decoded(secret: str) -> bytes:
    padded = secret + "=" * (-len(secret) % 4)
    return base64.b64decode(padded)


def command_line(process: Process) -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()


@pytest.fixture
def cluster(tmp_path: Path, identities: Identities) -> Iterator[ProtectedCluster]:
    with ProtectedCluster(tmp_path, identities) as cluster:
        yield cluster


@promise("A finished run has left no secret anywhere.")
def test_a_finished_run_has_no_secret_anywhere(cluster: ProtectedCluster, planted: list[str]) -> None:
    """Acceptance 10."""
    cluster.start_servers(2, "--checkpoint-every", "2 versions", PS_JOB_SECRET=planted[0])
    worker = cluster.start_worker("--batches", "4", "--hold", "computing@1")
    worker.wait_event("held")
    lines = [command_line(process) for process in (*cluster.servers, worker)]
    assert all(lines)
    status = str(cluster.status()).encode()
    worker.say("go on")
    cluster.wait_end(worker_codes=[0])
    files = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files) and any(path.suffix == ".jsonl" for path in files)
    said = ["\n".join(process.lines).encode() for process in (*cluster.servers, worker)]
    for text in (*lines, status, *said, *(path.read_bytes() for path in files)):
        assert not leaks(text, planted)
    # They would be found.
    assert leaks(b"x" + planted[0].encode() + b"x", planted)


def test_help_and_errors_have_none(
    planted: list[str], identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_JOB_SECRET", planted[0])
    runner = CliRunner()
    for command, arguments in (
        (server.main, ["--help"]),
        (psworker.cli.main, ["--help"]),
        (lab, ["status", "--help"]),
        (server.main, ["--ps-hosts", "127.0.0.1:0", "--no-out", "--policy", "none"]),
        (psworker.cli.main, ["--ps-hosts", "127.0.0.1:1", "--job", "no"]),
        (lab, ["status", "127.0.0.1:1"]),
    ):
        result = runner.invoke(command, arguments)
        assert not leaks(result.output.encode(), planted), arguments
        assert not leaks(str(result.exception).encode(), planted), arguments


def test_a_traceback_with_all_that_it_knows_has_none(planted: list[str], identities: Identities) -> None:
    options = identities.options(Role.SERVER, "server-0")
    settings = resolve(Options(ps_hosts="127.0.0.1:0", job_secret=planted[0], security=options), None)
    credentials = Credentials(
        LiveIdentity(identities.files(Role.SERVER, "server-0")), job_secret=Secret(planted[0].encode())
    )
    made = credentials.identity
    try:
        raise ValueError(f"{settings} {credentials} {made}")
    except ValueError:
        kind, error, trace = sys.exc_info()
        assert kind is not None
        text = "".join(
            traceback.TracebackException(kind, error, trace, capture_locals=True).format()  # type: ignore[arg-type]
        )
    local = [line for line in text.splitlines() if not line.strip().startswith("planted")]
    assert "settings =" in text and not leaks("\n".join(local).encode(), planted)


def test_the_environment_of_a_server_is_written_nowhere(tmp_path: Path) -> None:
    """Nothing in the sources dumps it."""
    root = Path(__file__).resolve().parents[2]
    for package in ("pswire", "psserver", "psworker", "pslab"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(print|json\.dumps?|log\.\w+|write_text)\(.*os\.environ\b", text), path
    assert os.environ
