"""The job's secret: servers prove it to each other, commands to the servers, and nobody learns it by listening."""

import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from pslab.launch.status_client import StatusClient, StatusError, StatusUntrusted
from pslab.runs.folder import secret_of
from pswire.exits import ExitCode
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import Role
from pswire.security.proof import ProofError
from pswire.security.secret import Secret
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.security.identities import Identities
from tests.service.proving import FOLLOW, prove, say_again
from tests.service.serving import PATIENCE, Options, Served, refused, serving, wait_until

SECRET = "known to the servers"
PRECONDITION, DENIED = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
def second() -> Iterator[Served]:
    """Server 1 of two, with nobody to follow yet."""
    served = Served(Options(ps_hosts="127.0.0.1:0,127.0.0.1:0", task_index=1, job_secret=SECRET))
    yield served
    if served.code is None:
        served.interrupt()
    served.ended()


def opening(**changed: Any) -> shard_pb2.FollowRequest:
    fields: dict[str, Any] = {"job": "job", "task_index": 1, "servers": 2, "secret": b"secret"}
    return shard_pb2.FollowRequest(open=shard_pb2.Open(**{**fields, **changed}))


def client(address: str, secret: str = "") -> StatusClient:
    return StatusClient(address, PATIENCE, Credentials(job_secret=Secret(secret.encode())))


@promise("Who has recorded a server's whole conversation cannot give orders with it.")
def test_a_recorded_conversation_is_refused(second: Served) -> None:
    said = prove(second.address, SECRET, FOLLOW, opening())
    assert [reply.executed for reply in said.replies] == [0]
    with refused(PRECONDITION, "own job secret only", "PS_JOB_SECRET"):
        say_again(second.address, FOLLOW, said)


def test_who_does_not_prove_the_secret_gives_no_orders(second: Served) -> None:
    for wrong in ({"secret": "another"}, {"server": 2}):
        with pytest.raises(ProofError):
            prove(second.address, **{"secret": SECRET, "path": FOLLOW, **wrong})
    with grpc.insecure_channel(second.address) as channel, refused(PRECONDITION, "PS_JOB_SECRET"):
        list(channel.stream_stream(FOLLOW)(iter([opening().SerializeToString()]), timeout=PATIENCE))


def test_a_server_without_a_secret_says_so_to_who_has_one() -> None:
    with serving() as cluster, closing(client(cluster.hosts, SECRET)) as asking:
        with pytest.raises(StatusError, match="has no job secret"):
            asking.note("hello")


@contextmanager
def squatting(heard: list[bytes], answer: Callable[[Any], None]) -> Iterator[str]:
    """A process at the port of a server that is gone, which writes down what it is told."""

    def serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        answer(context)
        for request in requests:
            heard.append(request)
            yield b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            if details.method.endswith("/FindCoordinator"):
                # Which tells nothing.
                return None
            return grpc.stream_stream_rpc_method_handler(serve)

    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait(PATIENCE)


@pytest.mark.parametrize("says", ["nothing", "a guess"])
def test_a_process_at_a_dead_servers_port_hears_nothing(says: str) -> None:
    heard: list[bytes] = []

    def answer(context: Any) -> None:
        if says == "a guess":
            context.send_initial_metadata((("ps-nonce-bin", bytes(32)), ("ps-proof-bin", bytes(32))))
        else:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "nothing")

    with squatting(heard, answer) as address:
        first = Served(Options(ps_hosts=f"127.0.0.1:0,{address}", task_index=0, job_secret=SECRET))
        assert first.ended() not in (None, ExitCode.OK)
        with closing(client(address, SECRET)) as asking, pytest.raises(OSError):
            asking.note("hello")
    assert heard == []


# Commands


@promise("Without TLS, a stranger who reaches a server's port cannot change a job that has a secret.")
def test_a_strangers_change_is_refused_and_says_where_the_secret_is() -> None:
    with serving(job_secret=SECRET) as cluster:
        request = pb.ChangePolicyRequest(name="async", knobs="{}", rate=1e6)
        with refused(DENIED, "the run's folder", "'secret'", "PS_JOB_SECRET"):
            cluster.coordinator.ChangePolicy(request, timeout=PATIENCE)
        for change in (lambda each: each.note("x"), lambda each: each.change_policy("async", {}, "", 1e6)):
            for secret in ("", "another"):
                with closing(client(cluster.hosts, secret)) as asking:
                    with pytest.raises(StatusUntrusted, match="PS_JOB_SECRET"):
                        change(asking)
        # Looking needs no proof.
        assert cluster.status().version == 0


def test_the_secret_is_in_the_run_folder_while_the_job_runs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(out=out, job_secret=SECRET) as cluster:
        assert stat.S_IMODE((out / "secret").stat().st_mode) == 0o600
        assert secret_of(out) == Secret(SECRET.encode())
        with closing(client(cluster.hosts, secret_of(out).reveal().decode())) as asking:
            asking.note("hello")
    assert "hello" in (out / "decisions.jsonl").read_text()
    files = [path for path in out.rglob("*") if path.is_file()]
    assert out / "secret" not in files
    assert not any(SECRET.encode() in path.read_bytes() for path in files)


def test_without_a_secret_nothing_is_proven(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with serving(out=out) as cluster, closing(client(cluster.hosts)) as asking:
        asking.note("hello")
        assert not (out / "secret").exists() and not secret_of(out)


def test_under_tls_servers_prove_it_and_roles_decide_who_commands(
    tmp_path: Path, identities: Identities
) -> None:
    out = tmp_path / "run"
    with serving(
        2,
        out=out,
        job_secret=SECRET,
        security=lambda index: identities.options(Role.SERVER, f"s{index}"),
        credentials=identities.credentials(Role.OBSERVER, "tests"),
    ) as cluster:
        wait_until(lambda: cluster.status().servers[1].state == "ready", "server 1")
        assert not (out / "secret").exists()
        address = cluster.servers[0].address
        with closing(StatusClient(address, PATIENCE, identities.credentials(Role.ADMIN, "a"))) as asking:
            asking.note("hello")
        with closing(StatusClient(address, PATIENCE, NO_TLS)) as asking, pytest.raises(OSError):
            asking.note("x")
