"""A server that comes back on another address: whom server 0 believes, and when."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from psserver.service.life import moves
from psserver.service.runtime import Runtime
from pswire.addresses import parse_address
from pswire.security.credentials import Credentials
from pswire.security.secret import Secret
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from tests.service.probe import late_status
from tests.service.proving import LOCATE, prove
from tests.service.serving import PATIENCE, Options, Served, refused, serving, wait_until

SECRET = "known to the servers"
SAVES = ("run.checkpoint_every=5 versions", "cluster.recover_timeout=30")
ELSEWHERE = "localhost:4242"


@contextmanager
def nobody() -> Iterator[str]:
    """An address at which nobody listens, nor will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def located(address: str, request: pb.LocateRequest, secret: str) -> pb.LocateReply:
    """Server 0's answer to a server with that secret, or with none."""
    if secret:
        (reply,) = prove(address, secret, LOCATE, request, server=None).replies
        return reply
    with grpc.insecure_channel(address) as channel:
        return stub_of(channel).Locate(request, timeout=PATIENCE)


class Server0:
    """Of a job whose server 1 is not there."""

    def __init__(self, out: Path | None, missing: str, secret: str = SECRET) -> None:
        hosts = f"127.0.0.1:0,{missing}"
        saves = SAVES if out is not None else ()
        options = Options(ps_hosts=hosts, task_index=0, out=out, job_secret=secret, overrides=saves)
        self.served = Served(options)
        self.secret = secret

    def __enter__(self) -> "Server0":
        return self

    def __exit__(self, *_: object) -> None:
        if self.served.code is None:
            self.served.interrupt()
        self.served.ended()

    @property
    def job(self) -> str:
        return self.ask().job

    def ask(
        self, address: str = ELSEWHERE, job: str = "", server: int = 1, servers: int = 2
    ) -> pb.LocateReply:
        request = pb.LocateRequest(task_index=server, servers=servers, address=address, job=job)
        return located(self.served.address, request, self.secret)

    def prove(self, address: str = ELSEWHERE, job: str | None = None) -> pb.LocateReply:
        return self.ask(address, self.job if job is None else job)

    def moves(self) -> bool:
        """A server that proves who it is, is believed: once it is missed."""
        return self.prove().address == ELSEWHERE


def test_a_server_that_is_missed_is_believed_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And hears so before the next generation begins, which cuts all calls."""
    late_status(monkeypatch)
    with nobody() as missing, Server0(tmp_path / "run", missing) as server:
        assert server.ask().address == missing
        wait_until(server.moves, "server 1 to be missed")
        server.served.ended()
        following = server.served.server.continuation
        assert following.again == f"server 1 came back at {ELSEWHERE}"
        assert str(following.hosts[1]) == ELSEWHERE and following.moved == {1}


def test_nobody_is_believed_without_the_secret_and_this_generation(tmp_path: Path) -> None:
    with nobody() as missing, Server0(tmp_path / "run", missing) as server:
        job = server.job
        request = pb.LocateRequest(task_index=1, servers=2, address=ELSEWHERE, job=job)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "the same PS_JOB_SECRET"):
            located(server.served.address, request, "")
        # A server of another generation asks, and no more.
        assert server.prove(job=f"{job}.1").address == missing
        assert server.served.server.continuation.again is None


def test_without_a_secret_nobody_is(tmp_path: Path) -> None:
    with nobody() as missing, Server0(tmp_path / "run", missing, secret="") as server:
        with refused(grpc.StatusCode.PERMISSION_DENIED, "the same PS_JOB_SECRET"):
            server.prove()


def test_a_job_that_waits_for_nobody_says_so() -> None:
    with nobody() as missing, Server0(None, missing) as server:
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "takes no checkpoints, or --recover-timeout is 0"):
            server.prove()


def test_what_is_no_place_of_a_server_is_refused(tmp_path: Path) -> None:
    with nobody() as missing, Server0(tmp_path / "run", missing) as server:
        for index, servers in ((0, 2), (2, 2), (1, 3)):
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "expected server 1 to 1 of 2"):
                server.ask(server=index, servers=servers)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "expected host:port"):
            server.ask("nowhere")
        for taken in (server.served.address, "h:0"):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "of server 1 alone"):
                server.prove(taken)


def test_a_server_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    """Also by one that knows the secret: a stopped process that wakes, say."""
    with serving(2, out=tmp_path / "run", job_secret=SECRET, overrides=SAVES) as cluster:
        wait_until(lambda: cluster.status().servers[1].state == "ready", "server 1")
        request = pb.LocateRequest(task_index=1, servers=2, address=ELSEWHERE, job=cluster.status().job)
        found = located(cluster.servers[0].address, request, SECRET)
        assert found.address == cluster.servers[1].address
        assert cluster.servers[0].server.continuation.again is None


def test_a_server_that_nobody_follows_says_where_it_is(tmp_path: Path) -> None:
    with nobody() as missing, Server0(tmp_path / "run", missing) as server:
        hosts = f"{server.served.address},127.0.0.1:0"
        other = Served(Options(ps_hosts=hosts, task_index=1, job_secret=SECRET))
        assert server.served.ended() is not None
        assert server.served.server.continuation.again == f"server 1 came back at {other.address}"
        other.interrupt()
        other.ended()


class Asking(moves.Announcing):
    """To a coordinator of generation `known` that looks for this server elsewhere. `asked`: the generations that it
    named; with one, the coordinator may move it there."""

    def __init__(self, known: str) -> None:
        own, credentials = parse_address("127.0.0.1:4242"), Credentials(job_secret=Secret(SECRET.encode()))
        super().__init__(parse_address("127.0.0.1:4241"), own, 1, 2, PATIENCE, Runtime(), credentials)
        self.known = known
        self.asked: list[str] = []

    async def _locate(self, channel: Any, job: str) -> pb.LocateReply:
        self.asked.append(job)
        return pb.LocateReply(address=ELSEWHERE, job=self.known)


@pytest.mark.parametrize(
    ("followed", "known", "asked"),
    [
        ("", "a", ["", "a"]),
        ("a", "a.1", ["", "a.1"]),
        ("a.1", "a.1", [""]),
        ("a.2", "a.1", [""]),
        ("a", "b.1", [""]),
    ],
    ids=["it follows none", "a later one", "its own", "an earlier one", "another job"],
)
def test_a_server_that_is_followed_moves_to_a_later_generation_only(
    followed: str, known: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator of its own generation dials it where it is."""
    monkeypatch.setattr(moves, "FIRST_PAUSE", 0.001)
    announcing = Asking(known)
    asyncio.run(announcing.run(lambda: bool(announcing.asked), followed))
    assert announcing.asked == asked
