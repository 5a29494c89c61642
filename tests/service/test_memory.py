"""Sixteen workers at one barrier, arriving in the worst order: few payloads are held, and all get through."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from pswire.model.plan import VariableSpec
from pswire.transport import frames
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

WORKERS = 16
LIMIT = 4


def pushed(peer: Peer, server: int, value: float = 1.0) -> bytes:
    """Push `value` everywhere, from one chunk's memory whatever the size of the model."""
    grant = peer.ready()
    total = peer.plan.shards[server].nbytes
    chunk = np.full(frames.CHUNK_BYTES // 4, value, "<f4")

    def requests() -> Iterator[bytes]:
        yield shard_pb2.PushRequest(header=peer.header(grant, server)).SerializeToString()
        for offset in range(0, total, frames.CHUNK_BYTES):
            yield b"".join(frames.chunk_field(offset, chunk[: (total - offset) // 4]))

    push = peer.cluster.channels[server].stream_unary(
        "/pswire.v1.Shard/Push", None, shard_pb2.PushReply.FromString
    )
    return bytes(push(requests(), timeout=4 * PATIENCE).receipt)


@contextmanager
def workers(cluster: Cluster, variables: Sequence[VariableSpec]) -> Iterator[list[Peer]]:
    """Members of the job by rank, all granted version 0."""
    peers = [Peer(cluster, f"w{rank}", variables) for rank in range(WORKERS)]
    assert [peer.reply.worker_index for peer in peers] == list(range(WORKERS))
    peers[0].send(ready=pb.Ready())
    peers[0].grant = peers[0].receive("grant")
    assert peers[0].grant.initialise
    commit(peers[0], [pushed(peers[0], server, 0.0) for server in range(len(cluster.servers))])
    for peer in peers:
        peer.send(ready=pb.Ready())
    for peer in peers:
        peer.grant = peer.receive("grant")
    yield peers
    for peer in peers:
        peer.leave()


def commit(peer: Peer, receipts: Sequence[bytes], *, ready: bool = False) -> None:
    assert peer.grant is not None
    peer.commit(peer.grant.ticket, receipts, ready=ready)
    peer.grant = None


class Round:
    """One barrier round: every worker pushes to every server on a thread of its own, then commits."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
        self.servers = range(len(cluster.servers))
        self._pool = pool
        self._lock = threading.Lock()
        self._futures: list[Future[None]] = []
        self.complete = [0 for _ in self.servers]

    def start(self, peer: Peer, servers: Sequence[int] | None = None) -> None:
        receipts: dict[int, bytes] = {}
        for server in servers or self.servers:
            self._futures.append(self._pool.submit(self._push, peer, server, receipts))

    def _push(self, peer: Peer, server: int, receipts: dict[int, bytes]) -> None:
        made = pushed(peer, server)
        with self._lock:
            self.complete[server] += 1
            receipts[server] = made
            last = len(receipts) == len(self.servers)
        if last:
            commit(peer, [receipts[s] for s in self.servers], ready=True)

    def finish(self, peers: Sequence[Peer]) -> None:
        for future in self._futures:
            future.result(4 * PATIENCE)
        for peer in peers:
            peer.grant = peer.receive("grant")


@pytest.mark.parametrize("servers", [1, 3])
def test_the_last_come_first(servers: int) -> None:
    """Rank 0 is summed first and pushes last: until it does, only LIMIT payloads are let in."""
    variables = [VariableSpec("w", (300, 10))]
    with (
        serving(servers, workers=WORKERS, policy="sync") as cluster,
        workers(cluster, variables) as peers,
        ThreadPoolExecutor(WORKERS * servers) as pool,
    ):
        for version in (1, 2):
            this = Round(cluster, pool)
            for peer in reversed(peers[1:]):
                this.start(peer)
            wait_until(lambda r=this: min(r.complete) == LIMIT, "as many payloads as are let in")
            assert max(this.complete) == LIMIT
            this.start(peers[0])
            this.finish(peers)
            assert all(peer.grant is not None and peer.grant.version == version for peer in peers)
        assert (peers[0].pull(peers[0].ready())[0] == -2.0).all()
        for served in cluster.servers:
            assert served.probe.staging_peak == LIMIT + 1


@pytest.mark.parametrize("seed", range(2))
def test_any_order_on_every_server(seed: int) -> None:
    """Each server hears of the workers in an order of its own: no circle of waiting."""
    order = random.Random(seed)
    with (
        serving(3, workers=WORKERS, policy="sync") as cluster,
        workers(cluster, [VariableSpec("w", (300, 10))]) as peers,
        ThreadPoolExecutor(WORKERS * 3) as pool,
    ):
        this = Round(cluster, pool)
        for peer in order.sample(peers, WORKERS):
            this.start(peer, order.sample(range(3), 3))
        this.finish(peers)
        assert (peers[0].pull(peers[0].ready())[0] == -1.0).all()
        for served in cluster.servers:
            assert served.probe.staging_peak <= LIMIT + 1
