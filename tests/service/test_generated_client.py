"""A client made of generated code alone trains, next to ours, and sees the same numbers."""

import pytest

from pswire.v1 import coordinator_pb2 as pb
from tests.service.serving import Peer, serving


@pytest.mark.parametrize("servers", [1, 3])
def test_push_pull_and_commit_by_generated_code(servers: int) -> None:
    with serving(servers) as cluster, Peer(cluster) as peer:
        fate = peer.step(0.25)
        assert (fate.fate, fate.version, fate.staleness, fate.weight) == (
            pb.Disposition.FATE_APPLIED,
            1,
            0,
            1.0,
        )
        kernel, bias, mean = peer.pull(peer.ready())
        assert (kernel == 0.75).all()
        assert (bias == 0.75).all()
        assert (mean == 1.25).all(), "state travels as deltas"
