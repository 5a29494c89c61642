"""Bad luck with many: workers that come and go, half of them killed at once, no descriptor left.

Small in the suite, and with `scripts/soak crowds` as large as it may come.
"""

import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest

from pslab.check.checker import check_run
from pslab.runs.folder import Run
from psserver.service.guard.limits import BURST, JOIN
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from tests.asking import ask
from tests.links import connect_link
from tests.promises import promise
from tests.repetitions import repetitions
from tests.service.peer import Peer, join_request
from tests.service.serving import LOOK_EVERY, PATIENCE, Cluster, granted, serving, wait_until

# Each name comes as often as one may without a pause.
NAMES, THREADS = repetitions(15, soak=500, fast=5), 4
# A Join and a session.
TIMES = BURST // (2 * JOIN)


# Coming and going


def come_and_go(cluster: Cluster, peer: Peer, name: str) -> None:
    """Join, open a session, leave, all over again."""
    with grpc.insecure_channel(cluster.servers[0].address) as channel:
        stub = stub_of(channel)
        for time in range(TIMES):
            session = f"{name}-{time}"
            reply = insist(lambda s=session: stub.Join(join_request(peer.plan, worker=name, session=s)))
            hello = pb.Hello(
                job=reply.job, worker=reply.worker, incarnation=reply.incarnation, session=session
            )
            said, events, first = insist(lambda h=hello: opened(stub, h))
            assert first.events[0].HasField("welcome")
            said.put(pb.SessionRequest(leave=pb.Leave(reason="test")))
            said.put(None)
            for _ in events:
                pass


def opened(
    stub: Any, hello: pb.Hello
) -> tuple["SimpleQueue[pb.SessionRequest | None]", Any, pb.SessionReply]:
    """A session, and the first that it says."""
    said: SimpleQueue[pb.SessionRequest | None] = SimpleQueue()
    said.put(pb.SessionRequest(hello=hello))
    events = stub.Session(iter(said.get, None), timeout=PATIENCE)
    return said, events, next(events)


def insist(call: Any) -> Any:
    """While the server says "wait"."""
    pause = threading.Event()
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            pause.wait(LOOK_EVERY)


@promise("Many workers may join and leave; nothing of them stays.")
def test_many_joins_and_leaves_leave_nothing_behind(tmp_path: Path) -> None:
    """300 of them (10,000 in a soak) while one worker trains."""
    out, failures = tmp_path / "run", []
    names: SimpleQueue[str] = SimpleQueue()
    for number in range(NAMES):
        names.put(f"w{number}")

    def visitors(cluster: Cluster, peer: Peer) -> None:
        try:
            while True:
                come_and_go(cluster, peer, names.get_nowait())
        except Empty:
            # Every name has come and gone.
            pass
        except BaseException as error:
            failures.append(error)
            raise

    with serving(out=out, overrides=["cluster.max_workers=0"]) as cluster, Peer(cluster, "stays") as stays:
        stays.step()
        server = cluster.servers[0].server
        threads = [threading.Thread(target=visitors, args=(cluster, stays)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        steps = 1
        while steps <= 2 or any(thread.is_alive() for thread in threads):
            steps += 1
            assert stays.step().version == steps
        for thread in threads:
            thread.join()
        assert not failures

        def left() -> list[Any]:
            assert server.job is not None
            present = list(server.job.coordinator.state.roster.present)
            return [
                present,
                len(server.job.routes.outboxes.all()),
                len(server.watch.strangers),
            ]

        wait_until(lambda: ask(server.runtime, left) == [["stays"], 1, 0], "the visitors to be gone")
    report = check_run(Run(out))
    assert not report.violations, report.violations
    kinds = [json.loads(line)["kind"] for line in (out / "decisions.jsonl").read_text().splitlines()]
    assert kinds.count("join") == 1 + NAMES * TIMES


# No descriptor left

# What the server below may open; it has some sixty of its own.
DESCRIPTORS = 140
# It cuts nobody for his silence: a descriptor that comes back and goes again would be a second time without one.
POOR = """
from pswire.transport import framed_socket
framed_socket.HANDSHAKE_TIMEOUT = 3600.0
from psserver.__main__ import run
run()
"""


@contextmanager
def poor_server(folder: Path) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, "-c", POOR, "--ps-hosts", "127.0.0.1:0", "--json", "--no-out"]
    with (folder / "server.log").open("wb") as errors:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *command, "--policy", "async"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
        )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["address"])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.cluster
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4 * DESCRIPTORS, reason="needs 1000 descriptors"
)
def test_without_descriptors_nobody_is_lost_and_one_line_says_so(tmp_path: Path) -> None:
    """Strangers take them all. Who is here trains on; who comes is accepted when there are some again."""

    def said(words: str) -> list[str]:
        return [line for line in (tmp_path / "server.log").read_text().splitlines() if words in line]

    with poor_server(tmp_path) as address, ExitStack() as strangers:
        worker = connect_link(address, {"w": np.zeros(8, np.float32)}, name="w", transport="socket")

        def step() -> None:
            grant = granted(worker)
            worker.contribute(grant, worker.pull_flat(grant), samples=1)

        with worker:
            step()
            [line] = said("listening for workers' payloads on port")
            port = int(line.split()[-1])
            while not said("a connection cannot be accepted yet: Too many open files"):
                strangers.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            for _ in range(5):
                step()
            with grpc.insecure_channel(address) as channel:
                status = stub_of(channel).Status.future(
                    pb.StatusRequest(), timeout=PATIENCE, wait_for_ready=True
                )
                step()
                strangers.close()
                assert status.result().version >= 6
            step()
        assert len(said("a connection cannot be accepted yet")) == 1
