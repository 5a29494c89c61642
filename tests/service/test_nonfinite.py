"""Finite contributions whose update is not finite: refused as a whole on every server, and training goes on."""

import re

import numpy as np
import pytest

from pswire.decisions import entries
from pswire.exits import ExitCode
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import VARIABLES, Cluster, serving

HUGE = float(np.float32(3.4e38))


def commit(peer: Peer, grant: pb.Grant, where: int, value: float) -> None:
    """A gradient that is `value` at the first element of variable number `where`, else 0."""
    arrays = [np.zeros(spec.shape, np.float32) for spec in VARIABLES]
    arrays[where].flat[0] = value
    peer.commit(grant.ticket, peer.push(grant, arrays))


def installed(cluster: Cluster) -> tuple[Peer, Peer, list[pb.Grant]]:
    """Two workers with a grant of version 0 each, which is ones everywhere."""
    one, other = Peer(cluster, "w0"), Peer(cluster, "w1")
    one.send(ready=pb.Ready())
    grant = one.receive("grant")
    one.commit(grant.ticket, one.push(grant, [np.ones(spec.shape, np.float32) for spec in VARIABLES]))
    for peer in (one, other):
        peer.send(ready=pb.Ready())
    return one, other, [one.receive("grant"), other.receive("grant")]


def dropped(peer: Peer, grant: pb.Grant) -> str:
    """Why the ticket's contribution is dropped."""
    while True:
        fate = peer.receive("disposition")
        if (fate.ticket, fate.fate) == (grant.ticket, pb.Disposition.FATE_DROPPED):
            return str(fate.reason)


def held(cluster: Cluster) -> list[bytes]:
    """All that the servers have and remember but for staged payloads, to the bit."""
    states = [served.probe.shard.state() for served in cluster.servers]
    return [
        name.encode() + values.tobytes()
        for state in states
        for name, values in sorted(state.arrays.items())
        if not name.startswith("payload/")
    ]


@promise("A version that is not finite is never published; robust policies stay robust, for state too.")
@pytest.mark.parametrize(
    ("servers", "where", "optimizer"),
    [(2, 0, "sgd"), (2, 1, "adam"), (2, 2, "sgd"), (1, 2, "adam")],
    ids=["a matrix", "a vector", "state", "state on one server"],
)
def test_two_gradients_that_overflow_together(servers: int, where: int, optimizer: str) -> None:
    """On one of two servers only, perhaps: the other one changes nothing, either."""
    with serving(servers, workers=2, policy="sync", overrides=[f"optimizer.name={optimizer}"]) as cluster:
        one, other, grants = installed(cluster)
        cluster.picture()
        before = held(cluster)
        for peer, each in zip((one, other), grants, strict=True):
            commit(peer, each, where, HUGE)
        for peer, each in zip((one, other), grants, strict=True):
            assert dropped(peer, each) == entries.NONFINITE
            peer.send(ready=pb.Ready())
        again = [one.receive("grant"), other.receive("grant")]
        assert [grant.version for grant in again] == [0, 0]
        cluster.picture()
        assert held(cluster) == before
        # Training goes on.
        for peer, each in zip((one, other), again, strict=True):
            commit(peer, each, where, 0.5)
        for peer in (one, other):
            peer.send(ready=pb.Ready())
            assert peer.receive("grant").version == 1
            peer.leave()


def test_so_many_in_a_row_end_the_job() -> None:
    limit = "cluster.nonfinite_limit=2"
    with serving(2, workers=2, policy="async", overrides=["optimizer.name=adam", limit]) as cluster:
        one, other, grants = installed(cluster)
        for peer, grant in zip((one, other), grants, strict=True):
            # Its square is infinite.
            commit(peer, grant, 0, 1e25)
        stops = [peer.receive("stop") for peer in (one, other)]
        for stop in stops:
            assert not stop.success
            assert "2 updates in a row would not be finite" in stop.reason
            assert re.search("came from (w0, w1|w1, w0)", stop.reason)
        one.leave()
        other.leave()
        assert {served.ended() for served in cluster.servers} == {ExitCode.DIVERGED}


def test_a_large_gradient_whose_update_is_finite_counts() -> None:
    with serving(2, workers=2, policy="async") as cluster:
        one, other, grants = installed(cluster)
        commit(one, grants[0], 0, 1e30)
        one.send(ready=pb.Ready())
        assert one.receive("grant").version == 1
        # From now on the weights are large: servers are asked about every update.
        commit(other, grants[1], 1, 1.0)
        other.send(ready=pb.Ready())
        assert other.receive("grant").version == 2
        one.leave()
        other.leave()
