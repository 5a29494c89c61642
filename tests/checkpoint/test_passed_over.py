"""A part in whose place a newer one was written is not waited for: neither by the next checkpoint nor by the end."""

import asyncio
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from psserver.checkpoint import CheckpointError, FileFacts, Store
from psserver.service.job.follower import Follower
from psserver.service.store import checkpoints, shard_part
from psserver.service.store.shard_part import REMEMBERED, PassedOver, passed_over
from psserver.shard import ShardState
from pswire.addresses import Address
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.repetitions import usually
from tests.service.loops import begun
from tests.service.loops import run as run_loop
from tests.service.peer import Peer
from tests.service.replicated import REPLICATED, copies, train
from tests.service.serving import PATIENCE, Cluster, serving, wait_until


@pytest.mark.parametrize(
    ("written", "passed"),
    [([], False), ([3], False), ([5], False), ([3, 5], False), ([7], True), ([3, 9], True)],
)
def test_what_is_passed_over(written: list[int], passed: bool) -> None:
    assert passed_over(5, written) == passed


@pytest.mark.parametrize("slow", usually([1], soak=[0]))
def test_a_checkpoint_whose_part_a_newer_one_replaced_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: int
) -> None:
    """Server `slow` writes version 2 while version 3 waits there. Server 0 has begun with version 3 when version 4
    takes its place.

    It would wait for that part for longer than this test does.
    """
    caplog.set_level(logging.INFO, "ps-server")
    first_done, second_done = threading.Event(), threading.Event()
    writing: set[int] = set()
    begun: list[int] = []
    save_shard, save_coordinator, complete = (
        shard_part.save_shard,
        checkpoints.save_coordinator,
        Store.complete,
    )

    def shard(store: Store, name: str, state: ShardState) -> dict[str, FileFacts]:
        if state.facts.server == slow:
            writing.add(state.facts.version)
            assert state.facts.version != 2 or second_done.wait(PATIENCE)
        return save_shard(store, name, state)

    def coordinator(store: Store, name: str, state: Any) -> Any:
        begun.append(state["version"])
        return save_coordinator(store, name, state)

    def completed(store: Store, about: Any) -> None:
        assert about.version != 1 or first_done.wait(PATIENCE)
        complete(store, about)

    monkeypatch.setattr(shard_part, "save_shard", shard)
    monkeypatch.setattr(checkpoints, "save_coordinator", coordinator)
    monkeypatch.setattr(Store, "complete", completed)
    out = tmp_path / "run"
    every = ["run.checkpoint_every=1 version"]
    with serving(1 + slow, out=out, shared=True, overrides=every) as cluster, Peer(cluster, "w0") as peer:
        peer.step()
        wait_until(lambda: begun == [1], "server 0 to begin with version 1")
        peer.step()
        wait_until(lambda: 2 in writing, "version 2 to be written")
        peer.step()
        cluster.picture()
        first_done.set()
        wait_until(lambda: begun == [1, 3], "server 0 to begin with version 3")
        peer.step()
        cluster.picture()
        second_done.set()
        wait_until(lambda: "version 4 is saved" in caplog.text, "the newest checkpoint")
    assert "version 3 is not saved: newer ones are due" in caplog.text


@promise("A checkpoint whose part cannot be written fails at once; nobody waits for a part that never comes.")
@pytest.mark.parametrize("entry", [5, 6])
def test_a_part_that_failed_or_that_failed_ones_replaced_is_not_waited_for(entry: int) -> None:
    """Server 0 remembers as many outcomes as a server reports: the newest few. All of these have failed."""

    async def run() -> None:
        follower = Follower(
            1, Address("127.0.0.1", 1), shard_pb2.Open(), 10.0, begun(), lambda *_: None, lambda *_: None
        )
        failed = [shard_pb2.Saved(entry=each, error="the disk is full") for each in range(6, 6 + REMEMBERED)]
        follower._received(shard_pb2.FollowReply(saved=failed))
        with pytest.raises(PassedOver if entry == 5 else CheckpointError):
            await asyncio.wait_for(follower.saved(entry, math.inf), PATIENCE)
        await follower.channel.close()

    run_loop(run())


def test_what_a_resume_passes_over_is_announced(tmp_path: Path) -> None:
    """ps-lab run shows it, whose users do not read the servers' logs."""
    out, every = tmp_path / "run", ("run.checkpoint_every=1 version",)
    with serving(1, out=out, overrides=every) as cluster:
        peer = Peer(cluster, "w0")
        for _ in range(3):
            peer.step()
        wait_until(lambda: len(Store(out / "checkpoints").names()) > 1, "two checkpoints")
    warned = damaged(out)
    with serving(1, out=out, overrides=every, resume="latest") as again:
        assert_warned(again, warned)


def test_with_copies_too(tmp_path: Path) -> None:
    out, every = tmp_path / "run", "run.checkpoint_every=1 version"
    with copies(2, out, every) as (_, session):
        train(session, 3)
        wait_until(lambda: len(Store(out / "checkpoints").names()) > 1, "two checkpoints")
    warned = damaged(out)
    with serving(2, out=out, shared=True, overrides=(*REPLICATED, every), resume="latest") as again:
        wait_until(lambda: any(kind == "warning" for kind, _ in again.servers[0].said), "a warning")
        assert_warned(again, warned)


def damaged(out: Path) -> str:
    """Damage the newest checkpoint; return how the warning about it begins."""
    newest = Store(out / "checkpoints").names()[-1]
    file = out / "checkpoints" / newest / "server-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    return f"passed over checkpoint {newest}: {file}: expected the SHA-256"


def assert_warned(cluster: Cluster, beginning: str) -> None:
    [(_, warned)] = [each for each in cluster.servers[0].said if each[0] == "warning"]
    assert warned["text"].startswith(beginning)
