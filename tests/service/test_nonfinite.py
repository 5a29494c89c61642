"""Finite contributions whose update is not finite: it is not published, and the job says whose they were."""

import numpy as np
import pytest

from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import VARIABLES, Cluster, serving, wait_until

HUGE = float(np.float32(3.4e38))


def commit(peer: Peer, grant: pb.Grant, where: int, value: float) -> None:
    """A gradient that is `value` at the first element of variable number `where`, else 0."""
    arrays = [np.zeros(spec.shape, np.float32) for spec in VARIABLES]
    arrays[where].flat[0] = value
    peer.commit(grant.ticket, peer.push(grant, arrays))


def finite(cluster: Cluster) -> bool:
    """Whatever can be read on any server."""
    held = [served.probe.shard.arena.values(served.probe.version) for served in cluster.servers]
    return all(np.isfinite(values).all() for values in held if values is not None)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("where", [0, 1, 2], ids=["a matrix", "a vector", "state"])
def test_two_gradients_that_overflow_together(servers: int, where: int) -> None:
    with serving(servers, workers=2, policy="sync") as cluster:
        one, other = Peer(cluster, "w0"), Peer(cluster, "w1")
        one.send(ready=pb.Ready())
        grant = one.receive("grant")
        ones = [np.ones(spec.shape, np.float32) for spec in VARIABLES]
        one.commit(grant.ticket, one.push(grant, ones))
        for peer in (one, other):
            peer.send(ready=pb.Ready())
        grants = [one.receive("grant"), other.receive("grant")]
        for peer, each in zip((one, other), grants, strict=True):
            commit(peer, each, where, HUGE)
        stops = [peer.receive("stop") for peer in (one, other)]
        assert finite(cluster)
        for stop in stops:
            assert not stop.success
            assert "version 1 would not be finite" in stop.reason
            assert "came from w0, w1" in stop.reason
        wait_until(lambda: any(s.probe.host.state.diverged for s in cluster.servers), "the refusal")
        one.leave()
        other.leave()
        assert {served.ended() for served in cluster.servers} == {ExitCode.DIVERGED}
