"""A client moves to the server that leads, also while the one that led before stands still."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import grpc
import pytest

from pswire.addresses import Address, parse_address
from pswire.model.plan import VariableSpec, make_plan
from pswire.transport.leader import EVERY, SOON, Leader, Sought
from pswire.transport.wire import wire_named
from pswire.v1 import coordinator_pb2 as pb
from psworker.data.carrier import Settings
from psworker.data.shard_group import ShardGroup
from tests.patience import PATIENCE


class Server:
    """Says who leads, once it goes on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.says = pb.FindCoordinatorReply()
        self.breaks = False
        # The epochs whose leader the client does not reach.
        self.asked: list[int | None] = []

    def find(self, request: bytes, context: Any) -> bytes:
        asked = pb.FindCoordinatorRequest.FromString(request)
        self.asked.append(asked.unreached if asked.HasField("unreached") else None)
        if self.breaks:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no way through")
        self.goes_on.wait()
        return self.says.SerializeToString()


@contextmanager
def listening() -> Iterator[tuple[Server, Address]]:
    served, server = Server(), grpc.server(ThreadPoolExecutor(4))
    methods = {"FindCoordinator": grpc.unary_unary_rpc_method_handler(served.find)}
    server.add_registered_method_handlers("pswire.v1.Coordinator", methods)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield served, parse_address(f"127.0.0.1:{port}")
    finally:
        served.goes_on.set()
        server.stop(0).wait()


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server, Leader]]:
    """Two servers, and a client that takes the first one for the leader. It would wait for ever for an answer."""
    with listening() as (first, led), listening() as (second, leads):
        second.says = pb.FindCoordinatorReply(address=str(leads), epoch=4)
        first.says = pb.FindCoordinatorReply(address=str(led), epoch=0)
        leader = Leader([led, leads], lambda each: grpc.insecure_channel(str(each)))
        with mock.patch("pswire.transport.leader.ANSWER", PATIENCE), leader:
            yield first, second, leader


def test_it_moves_while_the_former_leader_stands_still(pair: tuple[Server, Server, Leader]) -> None:
    first, second, leader = pair
    first.goes_on.clear()
    sought = leader.seek()
    assert sought.moved and not sought.present and str(leader.address) == second.says.address
    assert not first.goes_on.is_set()


def test_servers_that_are_slow_are_there(pair: tuple[Server, Server, Leader]) -> None:
    """They may be busy; whoever refuses a connection is not there."""
    first, second, leader = pair
    first.goes_on.clear()
    second.goes_on.clear()
    with mock.patch("pswire.transport.leader.ANSWER", 0.05):
        assert leader.seek() == (False, False, True)
    alone = Leader([leader.address], lambda each: grpc.insecure_channel(str(each)))
    with mock.patch("pswire.transport.leader.ANSWER", 0.05), alone:
        assert alone.seek() == (False, False, False)


def test_a_server_that_stands_still_is_asked_briefly_every_other_time(
    pair: tuple[Server, Server, Leader],
) -> None:
    """The others have answered by then. One that is only slow gets its time again."""
    first, second, leader = pair
    second.says = pb.FindCoordinatorReply(address=str(leader.address), epoch=0)
    first.goes_on.clear()
    with mock.patch("pswire.transport.leader.ANSWER", 0.05):
        assert not leader.seek().present
    with mock.patch("pswire.transport.leader.BRIEF", 0.05):
        # Otherwise it would wait for ever.
        assert not leader.seek().present
        first.goes_on.set()
        assert leader.seek().present


def test_a_session_that_has_moved_does_not_ask_again() -> None:
    """Its calls to the former leader fail when it moves: there is nothing to wait for."""
    settings = Settings(make_plan([VariableSpec("w", (1,))], 1), wire_named("float32"), PATIENCE)
    with listening() as (first, led), listening() as (second, leads):
        first.says = pb.FindCoordinatorReply(address=str(led), epoch=0)
        group = ShardGroup((led, leads), settings, replicas=True)
        seekers = [group.seeker(), group.seeker()]
        second.says = pb.FindCoordinatorReply(address=str(leads), epoch=4)
        assert isinstance(group.control, Leader)
        group.control.seek()
        group.closing.set()
        assert group.control.address == leads
        first.goes_on.clear()
        with mock.patch("pswire.transport.leader.ANSWER", PATIENCE):
            assert [seeker and seeker() for seeker in seekers] == [True, True]
        with mock.patch("pswire.transport.leader.ANSWER", 0.05):
            assert [seeker and seeker() for seeker in seekers] == [False, False]
        group.close()


class Closing(threading.Event):
    """Is set after so many pauses, which it notes instead of waiting."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._most, self.over = pauses, threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        if len(self.pauses) > self._most:
            self.over.set()
        return self.over.is_set()


def test_it_asks_again_soon_while_nobody_leads() -> None:
    leader = Leader([parse_address("127.0.0.1:1")], lambda each: mock.Mock(spec=grpc.Channel))
    found = [(False, True, True), (False, False, True), (False, False, True), (True, False, True)]
    closing = Closing(len(found))
    with mock.patch.object(leader, "seek", side_effect=[Sought(*each) for each in found]):
        leader.watch(closing)
        assert closing.over.wait(PATIENCE)
    assert closing.pauses == [EVERY, EVERY, SOON, SOON, EVERY]


def test_it_does_not_go_back_to_a_leader_that_wakes_up(pair: tuple[Server, Server, Leader]) -> None:
    first, second, leader = pair
    assert leader.seek().moved
    sought = leader.seek()
    assert not sought.moved and sought.present and str(leader.address) == second.says.address


def test_it_asks_servers_that_have_moved_since(pair: tuple[Server, Server, Leader]) -> None:
    _, known, leader = pair
    with listening() as (moved, address):
        known.says.servers.extend(["nowhere", str(address)])
        leader.seek()
        known.says = pb.FindCoordinatorReply()
        moved.says = pb.FindCoordinatorReply(address=str(address), epoch=7)
        assert leader.seek().moved and leader.address == address


def test_it_tells_others_that_the_server_they_name_does_not_answer(
    pair: tuple[Server, Server, Leader],
) -> None:
    first, second, leader = pair
    second.says = pb.FindCoordinatorReply(address=str(leader.address), epoch=3)
    leader.seek()
    first.breaks = True
    with mock.patch("pswire.transport.leader.UNREACHED", 0.0):
        leader.seek()
        assert second.asked == [None, None]
        leader.seek()
        assert second.asked.pop() == 3
        # Others name another one now, which they need not be told about.
        second.says.address = "127.0.0.1:1"
        leader.seek()
        second.asked.clear()
        leader.seek()
        assert second.asked == [None]
