"""The Exchange stream: the same results as Push, Pull and Commit, in fewer messages; exactly once."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

import psworker
from pswire.transport.codecs import FLOAT32
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.engine import Commit, Disposition
from psworker.link import Link
from tests.comparing import same
from tests.exchange.test_several_servers import broken
from tests.links import connect_link
from tests.probes import SessionProbe
from tests.sentences import Recorder
from tests.service.serving import granted
from tests.shm.sessions import proof

pytestmark = pytest.mark.cluster


def start_server(*options: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "psserver", "--ps-hosts", "127.0.0.1:0", "--json", "--no-out", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["address"]


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=60)
    return process.returncode


@pytest.fixture
def server() -> Iterator[str]:
    process, address = start_server("--policy", "async", "--learning-rate", "0.1")
    yield address
    process.terminate()
    ended(process)


def variables() -> dict[str, np.ndarray]:
    return {"w": np.ones((300, 7), np.float32), "b": np.zeros(7, np.float32)}


def gradients(step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    return {name: generator.normal(size=v.shape).astype(np.float32) for name, v in variables().items()}


def connected(address: str, transport: str = "auto") -> Link:
    return connect_link(address, variables(), transport=transport)


def trained(
    address: str, transport: str, *, together: bool = True, steps: int = 5
) -> tuple[np.ndarray, list[Disposition]]:
    """`steps` steps; the last version, flat, and what became of the contributions."""
    told: list[Disposition] = []
    with connected(address, transport) as session:
        for step in range(steps):
            grant = granted(session)
            session.pull_flat(grant)
            flats = session.plan.scatter(list(gradients(step).values()))
            more = step < steps - 1
            assert session.transport == (transport,)
            if together:
                session.contribute(grant, flats, samples=1, batch=step, ready=more)
            else:
                session.push_flat(grant, flats)
                session.commit(grant, samples=1, batch=step, ready=more)
        stop = session.done()
        told += session.dispositions()
        assert stop.success
        return session.pull_final()[0], told


@pytest.mark.parametrize("transport", ["grpc", "socket", "shared-memory"])
def test_a_step_in_one_message_gives_the_same_weights(server: str, transport: str) -> None:
    together, told = trained(server, transport)
    assert [d.fate for d in told[-5:]] == ["applied"] * 5
    other, address = start_server("--policy", "async", "--learning-rate", "0.1")
    apart, _ = trained(address, transport, together=False)
    assert ended(other) == 0
    assert same(together.tobytes(), apart.tobytes())


@pytest.mark.parametrize("transport", ["grpc", "socket"])
def test_a_lost_answer_counts_once(server: str, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was made, its answer is lost on the way: the worker commits again and goes on."""
    broken(monkeypatch, lambda number: False, {1, 3, 4}.__contains__)
    values, told = trained(server, transport)
    fates = [d for d in told if d.version > 0]
    assert [d.version for d in fates] == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    other, address = start_server("--policy", "async", "--learning-rate", "0.1")
    expected, _ = trained(address, transport)
    assert ended(other) == 0
    assert same(values.tobytes(), expected.tobytes())


def test_a_broken_exchange_before_the_commit_is_tried_again(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, {0, 1, 3, 6}.__contains__, lambda number: False)
    _, told = trained(server, "shared-memory")
    assert [d.version for d in told if d.version > 0] == [1, 2, 3, 4, 5]


class Foreign:
    """A client made of generated code only."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.shard = stub_of(self.channel, "Shard")
        self.coordinator = stub_of(self.channel)


def test_generated_code_speaks_exchange(server: str) -> None:
    with connected(server) as session:
        grant = granted(session)
        size = session.plan.shards[0].elements
        header = shard_pb2.PushHeader(
            job=session.info.job,
            worker=session.info.worker,
            ticket=grant.ticket,
            plan=session.plan.fingerprint,
            dtype=FLOAT32.number,
            bytes=4 * size,
            after=grant.index,
            **proof(session),
        )
        data = np.ones(size, np.float32).tobytes()
        requests = [
            shard_pb2.ExchangeRequest(push=header, chunk=data[:400]),
            shard_pb2.ExchangeRequest(chunk=data[400:]),
            shard_pb2.ExchangeRequest(
                pull=shard_pb2.PullRequest(
                    job=session.info.job,
                    ticket=grant.ticket,
                    version=grant.version,
                    plan=session.plan.fingerprint,
                    dtype=FLOAT32.number,
                    after=grant.index,
                    worker=session.info.worker,
                    **proof(session),
                )
            ),
        ]
        foreign = Foreign(server)
        receipt, version = list(foreign.shard.Exchange(iter(requests)))
        foreign.channel.close()
        # A digest, and the sum of squares that it vouches for.
        assert len(receipt.receipt) == 24
        assert version.bytes == 4 * size
        assert np.frombuffer(version.chunk, np.float32)[0] == 1.0
        session.abandon(grant, "enough")
        session.done()


def test_a_commit_without_its_session_is_refused(server: str, sentences: Recorder) -> None:
    with connected(server) as session:
        grant = granted(session)
        flats = session.plan.scatter(list(gradients(0).values()))
        unknown = pb.Hello(job=session.info.job, worker=session.info.worker, incarnation=0, session="guessed")
        commit = Commit(grant.ticket, samples=1)
        shard = SessionProbe(session).shard()
        with pytest.raises(psworker.Refused) as refused:
            shard.step(grant.ticket, flats[0], grant.index, commit, unknown)
        sentences.check(refused)
        session.contribute(grant, flats, samples=1)
        assert session.done().version == 1


def test_a_session_that_breaks_while_the_exchange_waits_is_made_up_for() -> None:
    """w0 waits in its exchange for the barrier when its session breaks: it comes back and goes on."""
    process, address = start_server("--policy", "sync", "--workers", "2", "--worker-timeout", "30")
    ready = threading.Barrier(2, timeout=60)
    versions: dict[int, int] = {}

    def work(index: int, session: Link) -> None:
        flats = session.plan.scatter(list(gradients(index).values()))
        for step in range(3):
            grant = granted(session)
            if index == 1:
                ready.wait()
                if step == 1:
                    break_session(sessions[0], process_status(address))
            else:
                ready.wait()
            session.contribute(grant, flats, samples=1, batch=step, ready=step < 2)
        versions[index] = session.done().version

    sessions = [connect_link(address, variables(), task_index=index) for index in range(2)]
    threads = [threading.Thread(target=work, args=(i, s)) for i, s in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for session in sessions:
        session.close()
    assert versions == {0: 3, 1: 3}
    assert ended(process) == 0


def process_status(address: str) -> Callable[[], pb.StatusReply]:
    channel = grpc.insecure_channel(address)
    stub = stub_of(channel)
    return lambda: stub.Status(pb.StatusRequest())


def break_session(session: Link, status: Callable[[], pb.StatusReply]) -> None:
    """Wait until w0's commit is in, that is, until it waits in its exchange; then end its session stream."""
    while next(w for w in status().workers if w.name == "w0").state != "waiting":
        pass
    sender = SessionProbe(session).requests
    assert sender is not None
    sender.put(None)
