"""A worker with a large payload delays others by slices: counted, in callbacks of the loop, not in seconds."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import psworker
from psserver.fast import FastBackend
from psserver.service.net import sockets
from psserver.service.net.connection import SLICE, Connection
from psserver.service.net.loop import LARGE_PASS
from psserver.service.store.executor import Executor
from psserver.shard import Apply
from pswire.model.plan import VariableSpec
from pswire.transport.framed_socket import LARGE as SMALL_FRAMES
from pswire.v1 import shard_pb2
from tests.probes import on_callbacks
from tests.promises import promise
from tests.repetitions import SOAK
from tests.service.peer import Peer, messages
from tests.service.serving import PATIENCE, granted, serving

# What is large is cut the same, however large it is.
BIG = VariableSpec("big", ((67 if SOAK else 20) * 10**6 // 4,))


class Turns:
    """Callbacks of one thread's loop: what each of them has moved and passed over, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread: int | None = None
        self.number = 0
        self.moved: Counter[int] = Counter()
        self.passed: Counter[int] = Counter()
        # By other threads.
        self.beside = 0
        compute = FastBackend.run

        def counted() -> None:
            if threading.get_ident() == self.thread:
                self.number += 1

        def passing(backend: FastBackend, loop: Any, fallback: Any, arrays: Any, *rest: Any) -> bool:
            self.count(self.passed, max(each.nbytes for each in arrays if each is not None))
            return compute(backend, loop, fallback, arrays, *rest)

        on_callbacks(monkeypatch, counted)
        monkeypatch.setattr(FastBackend, "run", passing)
        monkeypatch.setattr(
            sockets,
            "Connection",
            lambda loop, connected, *rest: Connection(loop, Counted(connected, self), *rest),  # type: ignore[arg-type]
        )

    def count(self, where: Counter[int], nbytes: int) -> None:
        if threading.get_ident() == self.thread:
            where[self.number] += nbytes
        else:
            self.beside += nbytes


class Counted:
    """A socket, and who moved how much on it."""

    def __init__(self, connected: socket.socket, turns: Turns) -> None:
        self._connected, self._turns = connected, turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connected, name)

    def recv_into(self, buffer: Any, *rest: Any) -> int:
        count = self._connected.recv_into(buffer, *rest)
        self._turns.count(self._turns.moved, count)
        return count

    def send(self, data: Any, *rest: Any) -> int:
        count = self._connected.send(data, *rest)
        self._turns.count(self._turns.moved, count)
        return count


@pytest.mark.parametrize("transport", ["socket", "shared-memory", "grpc"])
def test_no_callback_handles_more_than_a_slice(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    turns = Turns(monkeypatch)
    ones = np.ones(BIG.shape, np.float32)
    with serving() as cluster:
        turns.thread = cluster.servers[0].server.owner.ask(threading.get_ident)
        with psworker.connect(cluster.hosts, [(BIG, ones)], transport=transport) as session:
            for _ in range(2):
                grant = granted(session)
                session.contribute(grant, session.pull_flat(grant), samples=1)
            assert session.transport == (transport,)
    assert turns.beside > ones.nbytes, "nothing was large"
    assert max(turns.passed.values(), default=0) <= LARGE_PASS
    # The last slice of a frame, the first of its answer, and small ones with them.
    assert max(turns.moved.values(), default=0) <= 2 * (SLICE + SMALL_FRAMES)


@promise("A large payload delays other workers by one slice at most.")
@pytest.mark.parametrize("way", ["Push", "Exchange"])
def test_others_are_granted_and_committed_in_the_middle_of_a_large_payload(way: str) -> None:
    """Whoever pushes it rests half-way; the other's steps need nothing of it."""
    resting, go_on = threading.Event(), threading.Event()
    variables = (VariableSpec("w", (2**20,)),)
    # Whoever rests is not cut for it, however long the other's steps take.
    patient = [f"cluster.worker_timeout={10 * PATIENCE}"]
    with serving(overrides=patient) as cluster, Peer(cluster, "slow", variables) as slow:
        first = slow.ready()
        other = Peer(cluster, "other", variables)
        data = np.ones(2**20, "<f4").tobytes()

        def said() -> Iterator[Any]:
            pushed = list(messages(slow.header(first, 0), data, 2**19))
            for number, message in enumerate(pushed):
                if number == len(pushed) // 2:
                    resting.set()
                    assert go_on.wait(PATIENCE)
                yield message if way == "Push" else _exchanged(message)

        ended: list[Any] = []
        shard = cluster.shards[0]

        def push() -> None:
            if way == "Push":
                ended.append(shard.Push(said(), timeout=PATIENCE).receipt)
            else:
                ended.extend(reply.receipt for reply in shard.Exchange(said(), timeout=PATIENCE))

        thread = threading.Thread(target=push)
        thread.start()
        assert resting.wait(PATIENCE)
        versions = [other.step().version for _ in range(5)]
        assert versions == sorted(set(versions)) and not ended
        go_on.set()
        thread.join(PATIENCE)
        slow.commit(first.ticket, ended)
        slow.grant = None
        assert slow.settled().version == versions[-1] + 1
        other.leave()


def _exchanged(message: shard_pb2.PushRequest) -> shard_pb2.ExchangeRequest:
    if message.HasField("header"):
        return shard_pb2.ExchangeRequest(push=message.header)
    return shard_pb2.ExchangeRequest(chunk=message.chunk)


def test_an_update_of_many_small_contributions_runs_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is no large pass; a median goes over all of them at once."""
    beside: list[object] = []
    compute = Executor.compute_beside

    def noted(executor: Executor, index: int, order: Any, work: Any) -> None:
        beside.append(order)
        compute(executor, index, order, work)

    monkeypatch.setattr(Executor, "compute_beside", noted)
    variables = [(VariableSpec("w", (LARGE_PASS // 8,)), np.ones(LARGE_PASS // 8, np.float32))]

    def step(hosts: str) -> int:
        with psworker.connect(hosts, variables) as session:
            grant = granted(session)
            session.contribute(grant, session.pull_flat(grant), samples=1)
            after = granted(session)
            session.abandon(after, "it is enough")
            return after.version

    with serving(policy="median", workers=3) as cluster, ThreadPoolExecutor(3) as workers:
        versions = [each.result(PATIENCE) for each in [workers.submit(step, cluster.hosts) for _ in range(3)]]
    assert versions == [1, 1, 1]
    assert [type(order) for order in beside] == [Apply]
