"""Any server or worker of a job with replicas dies, stands still or is cut off, at any step: nobody goes back.

Few here; `scripts/soak crashes --replicas` takes many.
"""

from collections import deque
from itertools import combinations
from unittest import mock

import pytest

from pslab.verify.schedule import Seeded
from tests.promises import promise
from tests.recovery import losses
from tests.recovery.network import Sent, Way
from tests.recovery.settings import POLICIES, Job
from tests.repetitions import repetitions, seeds


@promise("Nothing is undone while one copy of each part is in sync.")
@pytest.mark.timeout(3600)
def test_nothing_is_undone_while_a_copy_is_in_sync() -> None:
    tally = losses.play_all(seeds(60, soak=5_000))
    assert tally.failed is None, tally.failed
    if repetitions(60, soak=5_000) >= 60:
        assert set(tally.counts["servers"]) == {"3", "4", "5"}
        assert set(tally.counts["parts of the model"]) == {"1", "2"}
        assert tally.counts["faults and what followed"].keys() >= {
            "takeover",
            "takeover of a part",
            "worker killed",
            "link cut",
            "clock jumps",
            "kill leader",
            "policy changed",
            "elements kept back",
        }


@pytest.mark.parametrize("lost", list(combinations(range(4), 2)))
def test_two_of_four_servers_are_lost_and_nobody_goes_back_in_two_of_three_cases(
    lost: tuple[int, int],
) -> None:
    """Pairs hold a part each. A job whose pair is lost goes on from the checkpoint of the version before."""
    history = losses.History(Job(POLICIES["sync"][0], 2, 1, False), Seeded(0), 4)
    history.lose(lost, 3)
    copies = history.copies
    assert not history.lost
    if lost in ((0, 1), (2, 3)):
        assert copies.generation == 1 and copies.rolled_back <= 1
    else:
        assert copies.generation == copies.rolled_back == 0


@pytest.mark.parametrize("seconds", [0.1, 0.8, 1.5])
def test_another_server_leads_where_each_message_takes_long(seconds: float) -> None:
    """Two round trips and two promises on disks take longer than a first attempt may."""
    history = losses.History(Job(POLICIES["sync"][0], 1, 100, False), Seeded(1), 3)
    copies, follower = history.copies, history.copies.servers[1]
    history.train(2)
    sent: dict[int, tuple[float, Sent]] = {}
    network, post = copies.network, copies.network.post

    def late(way: Way, message: Sent) -> None:
        post(way, message)
        sent[id(message)] = copies.now, message

    with mock.patch.object(network, "post", late):
        copies.kill(copies.servers[0])
        began = copies.now
        while not follower.leads:
            copies.pass_time(0.05)
            for way, stream in list(network.streams.items()):
                while stream and copies.now - sent.get(id(stream[0]), (began,))[0] >= seconds:
                    copies.carry(way)
                    stream = network.streams.get(way, deque())
            for server in copies.servers[1:]:
                copies.acts(server, lambda server=server: server.follow(10))  # type: ignore[misc]
            assert copies.now - began < 30.0
