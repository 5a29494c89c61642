"""Calls that say nothing, stop half-way, wait for ever or do not read cost others nothing but a moment, and the server
no thread."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from psserver.service.guard import calls
from psserver.service.guard.limits import UNPROVEN
from psserver.service.net import pushes
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.patience import within
from tests.promises import promise
from tests.service.peer import Peer, messages
from tests.service.serving import PATIENCE, Cluster, serving, wait_until

CUT = grpc.StatusCode.CANCELLED
METHODS = (
    "Shard/Push",
    "Shard/Pull",
    "Shard/Exchange",
    "Shard/Follow",
    "Coordinator/Session",
    "Coordinator/Join",
)


class Idle:
    """Calls whose client opens them and says nothing."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self._cluster, self._stack = cluster, stack
        self._over = threading.Event()
        self.calls: list[Any] = []

    def open(self, count: int, per_channel: int = 100) -> None:
        for number in range(count):
            if number % per_channel == 0:
                options = [("grpc.use_local_subchannel_pool", 1)]
                address = self._cluster.servers[0].address
                channel = self._stack.enter_context(grpc.insecure_channel(address, options))
            method = METHODS[number % len(METHODS)]
            call: Callable[..., Any] = channel.stream_stream(f"/pswire.v1.{method}", None, None)
            self.calls.append(call(self._nothing()))

    @property
    def ended(self) -> int:
        return sum(not call.is_active() for call in self.calls)

    def _nothing(self) -> Iterator[bytes]:
        self._over.wait()
        yield from ()

    def close(self) -> None:
        self._over.set()
        for call in self.calls:
            call.cancel()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@promise(
    "A server ends calls that say nothing, or do not read; it keeps room for Join, Status and sessions, and "
    "tells a caller that is one too many so."
)
def test_idle_calls_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Join, Status and running workers are served meanwhile, and no thread is started for any of them. Of calls that
    are reset nothing stays."""
    # However long it takes to open them all.
    monkeypatch.setattr(calls, "FIRST_MESSAGE", 10 * PATIENCE)
    with serving() as cluster, Peer(cluster, "worker") as worker:
        worker.step()
        idle = Idle(cluster, stack)
        stack.callback(idle.close)
        before = threading.active_count()
        many = 3 * UNPROVEN
        idle.open(many)
        wait_until(lambda: idle.ended >= many - UNPROVEN, "idle calls to arrive, and the oldest to be cut")
        # Those of its clients' channels and calls, which are in this process, too; a server has none of either.
        clients = {"_run", "channel_spin", "consume_request_iterator", "_channel_managed_call_management"}
        named = [t.name for t in threading.enumerate() if not any(c in t.name for c in clients)]
        assert len(named) <= before + 20, named
        assert worker.step().version == 2
        with Peer(cluster, "late") as late:
            assert late.step().version == 3
        assert cluster.status().version == 3
        idle.close()
        strangers = cluster.servers[0].server.watch.strangers
        wait_until(lambda: not strangers, "the calls to end")
        for _ in range(200):
            cluster.raw(0, "/pswire.v1.Shard/Push")(iter(())).cancel()
        assert worker.step().version == 4
        wait_until(lambda: not strangers, "calls that are reset at once to end")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_call_that_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    monkeypatch.setattr(calls, "FIRST_MESSAGE", 0.3)
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(PATIENCE)
        yield from ()

    with serving(2) as cluster:
        stack.callback(over.set)
        # Server 0 follows nobody.
        opened = [
            cluster.raw(int(method == "Shard/Follow"), f"/pswire.v1.{method}")(nothing(), timeout=PATIENCE)
            for method in METHODS
        ]
        for call in opened:
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() == CUT


@pytest.mark.parametrize("way", ["Push", "Exchange"])
def test_a_payload_that_stops_half_way_is_cut(
    way: str, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    with serving(worker_timeout=0.5) as cluster, Peer(cluster, "worker") as peer:
        grant = peer.ready()
        monkeypatch.setattr(pushes, "CHUNK_SECONDS", 0.0)
        header, *chunks = messages(peer.header(grant, 0), bytes(peer.plan.shards[0].nbytes), size=16)
        over = threading.Event()
        stack.callback(over.set)

        def half() -> Iterator[bytes]:
            first = header if way == "Push" else shard_pb2.ExchangeRequest(push=header.header)
            yield first.SerializeToString()
            yield (
                chunks[0] if way == "Push" else shard_pb2.ExchangeRequest(chunk=chunks[0].chunk)
            ).SerializeToString()
            over.wait(PATIENCE)

        with pytest.raises(grpc.RpcError) as caught:
            list(cluster.raw(0, f"/pswire.v1.Shard/{way}")(half(), timeout=PATIENCE))
        assert caught.value.code() == CUT
        monkeypatch.undo()
        assert peer.step().version == 1


# Readers


def test_members_that_take_grants_and_do_not_read_are_given_up(tmp_path: Path) -> None:
    """Each keeps another version from being recycled; they are waited for once, and dropped after the timeout."""
    overrides, out = ["cluster.worker_timeout=4.0"], tmp_path / "run"
    with (
        serving(read_limit=0.8, patience=10.0, overrides=overrides, out=out) as cluster,
        Peer(cluster, "worker") as worker,
    ):
        worker.step()
        lazy = [Peer(cluster, f"lazy{n}") for n in range(3)]
        for peer in lazy:
            peer.ready()
            worker.step()

        def given_up() -> bool:
            worker.step()
            states = {w.name: w.state for w in cluster.status().workers}
            return any(states[peer.worker] == "left" for peer in lazy)

        with within(10.0):
            wait_until(given_up, "one that does not read to be given up")
        assert worker.step().fate == pb.Disposition.FATE_APPLIED
    entries = [json.loads(line) for line in (out / "decisions.jsonl").read_text().splitlines()]
    # For that reason, a timeout after the first was found; not as one whose ticket is too old, after six.
    reasons = {entry["reason"] for entry in entries if entry["kind"] == "leave" and "lazy" in entry["worker"]}
    assert "does not read the versions that it is granted" in reasons
