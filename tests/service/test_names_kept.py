"""What is kept of every name that ever joined has an end."""

import grpc
import pytest

from pslab.verify.harness import CoordinatorHarness
from psserver.coordinator import JobState, inputs
from psserver.coordinator.roster import MAX_NAME_BYTES, REMEMBERED_SESSIONS, Tally
from psserver.service.guard.memory import MIB
from psserver.service.job import joining
from tests.service.peer import Peer, join_request
from tests.service.serving import PATIENCE, refused, serving


def weighed(harness: CoordinatorHarness) -> int:
    return sum(len(name) + tally.nbytes for name, tally in harness.coordinator.state.roster.tallies.items())


def test_the_sum_is_that_of_all_names_whatever_happens() -> None:
    harness = CoordinatorHarness("async", {}, workers=3).starts()
    roster = harness.coordinator.state.roster
    assert roster.nbytes == weighed(harness) > 0
    for turn in range(40):
        before = roster.nbytes
        harness.commits(f"w{turn % 3 if turn % 7 else 0}")
        assert roster.nbytes == weighed(harness) >= before
    for number in range(2 * REMEMBERED_SESSIONS):
        harness.coordinator.take(inputs.JoinAsked("again", f"session-{number:056}", 9), harness.now)
        assert roster.nbytes == weighed(harness)
    kept = roster.tally("again").nbytes + len("again")
    assert kept <= MAX_NAME_BYTES
    assert kept - Tally().nbytes >= REMEMBERED_SESSIONS * 64, "more processes are remembered, and counted"


def test_a_restored_roster_weighs_the_same() -> None:
    harness = CoordinatorHarness("async", {}, workers=2).starts()
    harness.commits("w0")
    harness.commits("w1")
    again = JobState.read(harness.coordinator.saved())
    assert again.roster.nbytes == harness.coordinator.state.roster.nbytes


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
