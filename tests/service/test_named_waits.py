"""What takes long is named by what it is: reading a checkpoint, a transfer, a job in which no version comes."""

import logging
import threading
from collections.abc import Iterator
from unittest import mock

import pytest

from psserver.service.job.follower import Follower
from psserver.service.life import job_loop
from psserver.service.life.job_loop import STANDSTILL, Standstill
from psserver.service.net import coordinator as served
from psserver.service.store import slow
from psserver.service.store.slow import mib_of, said
from pswire.addresses import Address
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.service.loops import begun
from tests.service.loops import run as run_loop
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, Cluster, wait_until


def test_what_takes_long_is_said_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    said_once = threading.Event()

    def what() -> str:
        said_once.set()
        return f"reads its part, {mib_of(2**20, 3 * 2**20)}"

    with caplog.at_level(logging.INFO, logger=slow.log.name), said(what, first=0.01):
        assert said_once.wait(60)
    assert "reads its part, 1.0 of 3.0 MiB (" in caplog.text


@promise("While a server reads its checkpoint, the job says so, and how far it is.")
def test_a_server_that_reads_its_checkpoint_is_named() -> None:
    async def run() -> None:
        follower = Follower(
            1, Address("127.0.0.1", 1), shard_pb2.Open(), 10.0, begun(), lambda *_: None, lambda *_: None
        )
        follower._silence.began(0.0)
        follower._received(shard_pb2.FollowReply(read=2**20, to_read=3 * 2**20))
        waited = follower.silent(30.0)
        assert waited is not None and waited[0] == "server 1 to read its checkpoint, 1.0 of 3.0 MiB"
        follower._received(shard_pb2.FollowReply())
        assert follower.reading is None, "it has read it"
        await follower.channel.close()

    run_loop(run())


@promise("A worker whose payload is under way is shown as transferring, not as computing.")
def test_a_worker_whose_payload_is_under_way(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SEEN", 0.0)
    ends = threading.Event()
    with Peer(cluster, "slow-link") as peer:
        grant = peer.ready()

        def push() -> Iterator[bytes]:
            yield shard_pb2.PushRequest(header=peer.header(grant, 0)).SerializeToString()
            ends.wait(PATIENCE)

        def state() -> str:
            return next(each.state for each in cluster.status().workers if each.name == "slow-link")

        assert state() == "computing"
        call = cluster.raw(0, "/pswire.v1.Shard/Push")(push(), timeout=PATIENCE)
        wait_until(lambda: state() == "transferring", "the payload to be under way")
        ends.set()
        call.cancel()
        wait_until(lambda: state() == "computing", "the call to end")


def test_a_job_in_which_no_version_comes_says_what_its_members_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_loop, "standstill", lambda coordinator, now: "w1 has been computing ticket 7")
    still = Standstill()
    coordinator = mock.Mock(state=mock.Mock(version=3, trains=True))
    with caplog.at_level(logging.WARNING, logger=job_loop.log.name):
        for now in range(0, int(9 * STANDSTILL), 2):
            still.look(coordinator, float(now))
        lines = [record.getMessage() for record in caplog.records]
        assert [line.split(":")[0] for line in lines] == [
            f"no version after 3 for {seconds:.0f} s" for seconds in (30, 60, 120, 240)
        ]
        assert all("w1 has been computing ticket 7" in line for line in lines)
        caplog.clear()
        coordinator.state.version = 4
        for now in range(300, 328):
            still.look(coordinator, float(now))
        coordinator.state.trains = False
        still.look(coordinator, 1e6)
        assert not caplog.records
