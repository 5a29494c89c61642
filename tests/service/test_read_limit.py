"""A reader that stops holds up nobody for longer than a limit, and never sees another version's bits."""

import threading

import grpc
import numpy as np
import pytest

from pswire.model.plan import VariableSpec
from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, refused, serving

ABORTED = grpc.StatusCode.ABORTED


@pytest.mark.parametrize("arena_versions", [2, 3])
def test_a_grant_that_is_not_read_in_time_is_taken_back(arena_versions: int) -> None:
    """With n buffers, n - 1 versions can wait for their readers until one more update needs a buffer."""
    with serving(read_limit=0.2, arena_versions=arena_versions) as cluster, Peer(cluster, "quick") as quick:
        readers = [Peer(cluster, f"slow{number}") for number in range(arena_versions - 1)]
        for number, reader in enumerate(readers):
            assert reader.ready().version == number
            assert quick.step().version == number + 1
        assert quick.step().version == arena_versions
        # The coordinator is ahead; the shard has made that version once it can be read.
        assert (quick.pull(quick.ready())[0] == 1.0 - arena_versions).all()
        for number, reader in enumerate(readers):
            with refused(
                ABORTED, f"version {number} is gone", "not read within 0.2 s", "ask for a new grant"
            ):
                reader.pull(reader.ready())
            reader.send(abandon=pb.Abandon(ticket=reader.ready().ticket, reason="its version is gone"))
            reader.grant = None
            assert reader.settled().fate == pb.Disposition.FATE_DROPPED
            assert reader.ready().version == arena_versions
            assert (reader.pull(reader.ready())[0] == 1.0 - arena_versions).all()
            reader.leave()


def test_a_read_within_the_limit_holds_its_version() -> None:
    """The update waits; the reader gets the version that it was granted."""
    with serving(read_limit=PATIENCE, arena_versions=2) as cluster:
        with Peer(cluster, "reader") as reader, Peer(cluster, "writer") as writer:
            grant = reader.ready()
            writer.step()
            second = threading.Thread(target=writer.step)
            second.start()
            assert (reader.pull(grant)[0] == 1.0).all()
            second.join(PATIENCE)
            assert cluster.status().version == 2


@pytest.mark.parametrize("granted", [True, False])
def test_a_reader_that_stops_in_the_middle_holds_nobody_up(granted: bool) -> None:
    """What it gets is its version's, and whole, with a ticket or without one."""
    variables = [VariableSpec("w", (4_000_000,))]
    # It is not cut for reading nothing, however long the writer's steps take.
    patient = [f"cluster.worker_timeout={10 * PATIENCE}"]
    with (
        serving(read_limit=0.2, arena_versions=2, overrides=patient) as cluster,
        Peer(cluster, "w0", variables) as writer,
    ):
        request = writer.request(writer.ready(), **({} if granted else {"ticket": 0}))
        # Without probing, at most 64 KiB are on their way to a reader that does not read.
        with grpc.insecure_channel(cluster.servers[0].address, [("grpc.http2.bdp_probe", 0)]) as channel:
            replies = stub_of(channel, "Shard").Pull(request, timeout=4 * PATIENCE)
            got = [next(replies)]
            for version in (1, 2, 3):
                assert writer.step().version == version
            got += replies
            received = b"".join(reply.chunk for reply in got)
            assert len(received) == got[0].bytes
            assert (np.frombuffer(received, "<f4") == 1.0).all()
