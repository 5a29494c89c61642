"""Many peers: silent ones keep nobody out, threads are as many as before, and who is one too many is told so."""

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

import psworker
from psserver.service.guard import limits
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, granted, refused, serving, wait_until

STRANGERS = 1000
# One thread for each would show.
WORKERS = 36


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * STRANGERS, reason="needs 4000 descriptors"
)
def test_a_thousand_connections_that_never_speak_keep_nobody_out() -> None:
    """On gRPC's port, and on that for payloads."""
    with serving() as cluster, Peer(cluster, "worker") as worker, ExitStack() as stack:
        worker.step()
        server = cluster.servers[0].server
        ports = [int(cluster.servers[0].address.rpartition(":")[2])]
        ports.append(server.owner.ask(lambda: server.sockets.port))
        for number in range(STRANGERS):
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[number % 2]), PATIENCE))
        assert worker.step().version == 2
        with psworker.connect(
            cluster.hosts, [(spec, np.ones(spec.shape, np.float32)) for spec in worker.plan.variables]
        ) as late:
            grant = granted(late)
            late.pull_flat(grant)
            assert late.transport == ("shared-memory",)
        assert worker.step().version == 3


def test_one_more_than_there_is_room_for_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = limits.RESERVED_DESCRIPTORS + 2 * limits.DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (room, room))
    with serving() as cluster, Peer(cluster, "one") as one, Peer(cluster, "two") as two:
        with refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "room for 2 workers at once, and has them", "ulimit -n"
        ):
            Peer(cluster, "three")
        # Who is here may join again, and a place that is left is another's.
        Peer(cluster, "one")
        assert one.worker == "one"
        two.send(leave=pb.Leave(reason="test"))
        wait_until(lambda: [w.state for w in cluster.status().workers if w.name == "two"] == ["left"], "it")
        Peer(cluster, "three")


def test_memory_has_a_say() -> None:
    assert limits.capacity(limits.WORKER_MEMORY).workers == 1
    assert "--memory-limit" in limits.capacity(limits.WORKER_MEMORY).why


@contextmanager
def server_process(folder: Path) -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    command = [
        sys.executable,
        "-m",
        "psserver",
        "--ps-hosts",
        "127.0.0.1:0",
        "--json",
        "--no-out",
        "--policy",
        "async",
    ]
    with (folder / "server.log").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["address"]), process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_cost_no_threads(tmp_path: Path) -> None:
    """Whatever their transport; and a server has none for a worker that has gone either."""
    with server_process(tmp_path) as (address, pid), ExitStack() as stack:

        def step(name: str, transport: str) -> None:
            session = psworker.connect(
                address, {"w": np.zeros(1000, np.float32)}, name=name, transport=transport
            )
            stack.callback(session.close)
            grant = granted(session)
            session.contribute(grant, session.pull_flat(grant), samples=1)

        for number, transport in enumerate(("grpc", "socket", "shared-memory")):
            step(f"first{number}", transport)
        before = own_threads(pid)
        for number in range(WORKERS):
            step(f"w{number}", ("grpc", "socket", "shared-memory")[number % 3])
        # The passes over arrays have two.
        assert own_threads(pid) < before + WORKERS // 2


def own_threads(pid: int) -> int:
    """Without those of gRPC, which give themselves names, and are more where they are kept waiting for a processor."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # One may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text(encoding="utf-8"))
    own = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    return names.count(own)
