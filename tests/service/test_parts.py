"""A model in several parts, each with two copies: servers in this process."""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

from psserver.options import Options
from psserver.replication import begin, first_config
from psserver.service.errors import Code, RequestRefused
from psserver.service.guard.memory import Memory
from psserver.service.replicas.part import PartCopy
from psserver.service.replicas.same import mark_folder
from psserver.service.replicas.shell import Shell
from psserver.service.store.shard_part import PartSaver
from psserver.settings import resolve
from psserver.shard import Shard
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.service.replicated import Job, copies, newest, train
from tests.service.serving import PATIENCE, Cluster, Served, wait_until


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Job]:
    """A worker has made four versions."""
    with copies(5, tmp_path / "run") as (cluster, session):
        train(session, 4)
        yield cluster, session


def equal(first: Served, second: Served) -> bool:
    return newest(first) == newest(second)


def test_both_copies_of_each_part_are_equal(five: Job) -> None:
    cluster, session = five
    states = [server.state for server in cluster.status().servers]
    assert states == ["leads", "in sync", "serves part 1", "in sync", "votes"]
    train(session, 3)
    wait_until(lambda: newest(cluster.servers[0])[0] == 7, "the last version")
    for first, second in (cluster.servers[:2], cluster.servers[2:4]):
        wait_until(partial(equal, first, second), "equal copies")
    assert newest(cluster.servers[0])[1] != newest(cluster.servers[2])[1]


def serving_part(cluster: Cluster) -> str:
    return str(cluster.status().servers[3].state)


def test_a_primary_of_a_part_whose_copy_is_void_is_replaced_while_training_goes_on(
    five: Job,
) -> None:
    cluster, session = five
    cluster.servers[2].probe.leave_out()
    assert cluster.servers[2].ended() is not None
    train(session, 4)
    assert serving_part(cluster) == "serves part 1"
    wait_until(lambda: cluster.status().version == 8, "the last update")
    assert "one copy of part 1 is left: its loss would end the job" in cluster.status().replicas
    found = cluster.coordinator.FindCoordinator(pb.FindCoordinatorRequest(), timeout=PATIENCE)
    assert [each.address for each in found.parts] == [cluster.servers[3].address]
    assert found.parts[0].epoch > 0


def test_a_part_serves_workers_by_its_primary_only_and_follows_the_coordinator_of_its_job_alone(
    five: Job,
) -> None:
    cluster, session = five
    for number in (1, 3):
        with pytest.raises(grpc.RpcError) as refused:
            list(cluster.shards[number].Pull(shard_pb2.PullRequest(), timeout=PATIENCE))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    secret, job = cluster.servers[0].server.host.secret, cluster.status().job
    changes: list[tuple[int, dict[str, Any], grpc.StatusCode]] = [
        # It follows, or has no part that does.
        (3, {}, grpc.StatusCode.UNAVAILABLE),
        (0, {}, grpc.StatusCode.FAILED_PRECONDITION),
        (4, {}, grpc.StatusCode.FAILED_PRECONDITION),
        (2, {"job": "another"}, grpc.StatusCode.FAILED_PRECONDITION),
        (2, {"task_index": 2}, grpc.StatusCode.FAILED_PRECONDITION),
        (2, {"secret": b"another"}, grpc.StatusCode.FAILED_PRECONDITION),
    ]
    for server, change, code in changes:
        given = {"job": job, "task_index": 1, "servers": 2, "secret": secret, **change}
        opening = shard_pb2.FollowRequest(open=shard_pb2.Open(**given))
        with pytest.raises(grpc.RpcError) as refused:
            list(cluster.shards[server].Follow(iter([opening]), timeout=PATIENCE))
        assert refused.value.code() == code, (server, change)
    train(session, 2)


def part_copy(out: Path, host: mock.Mock) -> PartCopy:
    """A copy of part 1 that leads. Its log takes every item at once. Within the loop."""
    mark_folder(out, "j")
    hosts, overrides = ",".join(["127.0.0.1:0"] * 4), ("cluster.replicas=2", "optimizer.name=sgd")
    settings = resolve(Options(ps_hosts=hosts, task_index=2, out=out, overrides=overrides), None)
    shell = mock.create_autospec(Shell, instance=True, links=mock.Mock(links={}))
    shell.replica = begin(2, 4, first_config((2, 3)))
    shell.active = shell.replica.disk.config
    host.memory = Memory(1 << 30, 3)
    host.runtime.loop, host.runtime.now = asyncio.get_running_loop(), lambda: 0.0
    part = PartCopy(settings, host, shell, lambda: None)
    taken = count(1)
    shell.offer.side_effect = lambda body: part.execute(next(taken))
    part.begin()
    return part


def stream(epoch: int, *entries: int) -> mock.Mock:
    """A coordinator's stream with orders for these entries, which then says nothing more."""
    opening = shard_pb2.Open(job="j", task_index=1, servers=2, secret=b"s", leads_in=epoch)
    orders = [shard_pb2.Decision(index=entry, note=True) for entry in entries]
    said = [
        shard_pb2.FollowRequest(open=opening),
        *(shard_pb2.FollowRequest(decisions=shard_pb2.Decisions(decisions=[each])) for each in orders),
    ]
    more = asyncio.get_running_loop().create_future()

    def receive(most: int | None = None) -> Any:
        return asyncio.sleep(0, said.pop(0).SerializeToString()) if said else more

    return mock.Mock(receive=receive, reply=mock.AsyncMock())


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def some_host() -> mock.Mock:
    host = mock.Mock(server=1, nbytes=0)
    host.state.failure, host.state.executed = None, 0
    host.saver.parts = {}
    host.table_figures.return_value = []
    return host


def test_the_coordinator_of_the_latest_epoch_is_heard_alone(tmp_path: Path) -> None:
    """One that was replaced, and does not know it, ends without harm."""

    async def follow() -> None:
        part = part_copy(tmp_path, some_host())
        present, later = stream(7), stream(8)
        streams = [asyncio.ensure_future(part.follow_coordinator(present))]
        await turns()
        with pytest.raises(RequestRefused) as refused:
            await part.follow_coordinator(stream(6))
        assert refused.value.code == Code.UNAVAILABLE
        assert not present.caller.cancel.called
        streams.append(asyncio.ensure_future(part.follow_coordinator(later)))
        await turns()
        assert present.caller.cancel.called and not later.caller.cancel.called
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    asyncio.run(follow())


@pytest.mark.parametrize("alone", [False, True])
def test_the_follower_saves_a_part_or_its_primary_if_that_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    save, savers = PartSaver.save, list[PartSaver]()

    def noted(saver: PartSaver, entry: int, job: str, shard: Shard) -> bool:
        savers.append(saver)
        return save(saver, entry, job, shard)

    monkeypatch.setattr(PartSaver, "save", noted)
    with copies(5, tmp_path / "run", "run.checkpoint_every=3 versions", job_secret="shared") as (
        cluster,
        session,
    ):
        train(session, 1)
        if alone:
            cluster.servers[3].probe.leave_out()
            assert cluster.servers[3].ended() is not None
            wait_until(lambda: "one copy of part 1" in cluster.status().replicas, "the loss")
        train(session, 3)
        manifests = tmp_path / "run" / "checkpoints"
        wait_until(lambda: list(manifests.glob("*/manifest.json")), "a checkpoint")
        primary, follower = (cluster.servers[n].server.host.saver for n in (2, 3))
        assert (primary in savers, follower in savers) == (alone, not alone)
        assert {file.name for file in manifests.glob("*/server-*.json")} == {"server-0.json", "server-1.json"}
