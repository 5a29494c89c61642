"""Any server or worker of a job with replicas dies, stands still or is cut off, at any step: nobody goes back.

Few here; `scripts/soak crashes --replicas` takes many.
"""

from collections import deque
from collections.abc import Callable
from itertools import combinations
from unittest import mock

import pytest

from pslab.verify.schedule import Seeded
from psserver.coordinator import Record
from psserver.service.replicas.inputs import NotedCoordinator
from psserver.service.replicas.logs import holders
from psserver.shard_bounds import ShardBounds
from pswire.model.plan import parts_of
from tests.promises import promise
from tests.recovery import losses
from tests.recovery.copies import Copies, Server
from tests.recovery.holding import Holding
from tests.recovery.network import Sent, Way
from tests.recovery.parts import Orders, Part
from tests.recovery.settings import POLICIES, Job
from tests.repetitions import repetitions, seeds


@promise("Nothing is undone while one copy of each part is in sync.")
@pytest.mark.timeout(3600)
def test_nothing_is_undone_while_a_copy_is_in_sync() -> None:
    tally = losses.play_all(seeds(60, soak=5_000))
    assert tally.failed is None, tally.failed
    if repetitions(60, soak=5_000) >= 60:
        assert set(tally.servers) == {3, 4, 5} and set(tally.parts) == {1, 2}
        assert tally.happened.keys() >= {
            "takeover",
            "takeover of a part",
            "worker killed",
            "link cut",
            "clock jumps",
            "kill leader",
            "policy changed",
            "update tried",
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


def test_two_of_many_servers_share_a_part_as_seldom_as_pairs_allow() -> None:
    """Of four servers in one case of three; of five, one of which only votes, in two of ten."""
    for servers, both in ((4, 2), (5, 2), (6, 3), (8, 4)):
        parts = parts_of(servers, 2)
        pairs = [set(pair) for pair in combinations(range(servers), 2)]
        assert sum(any(pair == set(holders(part)) for part in range(parts)) for pair in pairs) == both
        assert len(pairs) == servers * (servers - 1) // 2


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


def faults(monkeypatch: pytest.MonkeyPatch, kind: object, name: str, instead: object) -> bool:
    """Whether histories find that something is done in another way."""
    monkeypatch.setattr(kind, name, instead)
    return losses.play_all(range(300)).failed is not None


def test_a_receipt_that_only_one_copy_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(server: Server, ticket: int, then: object = lambda: None) -> None:
        if not server.shard.refuses(ticket):
            server.shard.push(ticket)
            assert callable(then)
            then()

    assert faults(monkeypatch, Server, "push", push)


def test_a_part_that_two_servers_save_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decides by itself: who follows saves, and a primary that is alone."""

    def saves(holding: Holding, saver: int) -> bool:
        return not holding.leads or len(holding.shell.replica.disk.config.members) == 1

    assert faults(monkeypatch, Holding, "saves", saves)


def test_outputs_that_leave_before_all_copies_hold_their_input_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer = Server.offer

    def hasty(server: Server, body: bytes, release: object) -> None:
        assert callable(release)
        release()
        offer(server, body, lambda: None)

    assert faults(monkeypatch, Server, "offer", hasty)


def test_inputs_that_a_copy_does_not_take_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = NotedCoordinator.taken

    def forgetful(coordinator: NotedCoordinator) -> object:
        return [call for call in taken(coordinator) if call.name != "disconnect"]

    assert faults(monkeypatch, NotedCoordinator, "taken", forgetful)


def test_bounds_that_a_copy_does_not_get_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy then asks about another update than the coordinator that leads."""
    assert faults(monkeypatch, ShardBounds, "restore", lambda bounds, state: None)


def test_orders_that_only_the_leading_coordinator_keeps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Orders.send

    def forgets(orders: Orders, record: Record) -> None:
        if orders.process.leads:
            send(orders, record)

    assert faults(monkeypatch, Orders, "send", forgets)


def test_orders_that_count_as_executed_before_all_copies_have_them_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert faults(monkeypatch, Part, "when_stable", lambda part, then: then())


def test_a_receipt_that_only_one_copy_of_a_part_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    push = Part.push

    def hasty(part: Part, ticket: int, then: Callable[[], None] = lambda: None) -> None:
        push(part, ticket)
        then()

    assert faults(monkeypatch, Part, "push", hasty)


def test_a_promise_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts again takes part under its former name."""

    def begin_again(server: Server) -> None:
        server.incarnation -= 1
        begin(server)

    begin = Server.begin_again
    assert faults(monkeypatch, Server, "begin_again", begin_again)


def test_copies_that_differ_are_found_without_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copies, "compared", 10**6, raising=False)
    assert faults(monkeypatch, Server, "differ", lambda server, found: None)


def test_a_shell_that_forgets_to_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(log: Holding, disk: object) -> None:
        """The promise is made, and is not on the disk."""

    assert faults(monkeypatch, Holding, "keep", kept)
