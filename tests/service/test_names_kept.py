"""What is kept of every name that ever joined has an end."""

import grpc
import pytest

from psserver.coordinator.roster import MAX_NAME_BYTES
from psserver.service.guard.memory import MIB
from psserver.service.job import joining
from tests.service.peer import Peer, join_request
from tests.service.serving import PATIENCE, refused, serving


def test_names_without_end_are_refused_with_the_numbers_and_members_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(memory_limit=30 * MIB) as cluster, Peer(cluster, "honest") as peer:
        peer.step()
        # Room for the two names that are to come, and no third.
        kept = cluster.servers[0].probe.job.coordinator.state.roster.nbytes
        most = kept + 2 * MAX_NAME_BYTES
        monkeypatch.setattr(joining, "NAMES", most)
        came = 0
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "no memory for one more name", "--max-workers"):
            for number in range(100):
                request = join_request(peer.plan, worker=f"stranger-{number}", session=f"s{number}")
                cluster.coordinator.Join(request, timeout=PATIENCE)
                came += 1
        assert came >= 2
        assert kept < cluster.servers[0].probe.job.coordinator.state.roster.nbytes <= most
        # Who has been here may come back, and whoever works goes on.
        cluster.coordinator.Join(
            join_request(peer.plan, worker="stranger-0", session="another"), timeout=PATIENCE
        )
        assert peer.step().version == 2
