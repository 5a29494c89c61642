"""Whoever has proven nothing yet, by address: a noisy one takes nobody else's room, and nobody else's turn."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise

import grpc
import pytest

from psserver.service.guard.calls import Caller, ConcurrentCalls, Watch
from psserver.service.guard.limits import (
    UNAUTHENTICATED,
    UNAUTHENTICATED_PER_ADDRESS,
    Limit,
    UnprovenPeers,
    address_of,
)
from psserver.service.guard.rates import Turns
from psserver.service.net import registration
from psserver.service.net import sockets as served
from pswire.transport import framed_socket
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, serving, wait_until
from tests.shm.test_sockets import listening, socket_to

# On Linux all of 127.0.0.0/8 is this machine.
QUIET, NOISY = "127.0.0.2", "127.0.0.3"


@promise(
    "One noisy address takes nobody else's room or turn among connections and calls that have proven nothing."
)
def test_of_too_many_the_oldest_goes_of_the_address_that_has_the_most() -> None:
    strangers: UnprovenPeers[str] = UnprovenPeers(4)
    for peer, address in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("a2", "a")):
        assert strangers.admit(peer, address) == []
    # With the one that comes, b has the most.
    assert strangers.admit("b3", "b") == ["b1"]
    assert strangers.admit("c1", "c") == ["a1"]
    assert strangers.admit("d1", "d") == ["b2"]
    assert list(strangers) == ["a2", "b3", "c1", "d1"] and "b1" not in strangers
    # All alone: the address that came first.
    assert strangers.admit("e1", "e") == ["a2"]


def test_whoever_comes_alone_stays_whatever_one_address_does() -> None:
    strangers: UnprovenPeers[int] = UnprovenPeers(8)
    assert strangers.admit(-1, "quiet") == []
    for peer in range(1000):
        assert -1 not in strangers.admit(peer, "noisy")
    assert -1 in strangers and len(strangers) == 8


def test_one_address_has_a_limit_of_its_own_and_a_unix_socket_none() -> None:
    strangers: UnprovenPeers[int] = UnprovenPeers(100, 2)
    assert [strangers.admit(peer, "a") for peer in range(4)] == [[], [], [0], [1]]
    assert [strangers.admit(peer, "") for peer in range(10, 14)] == [[]] * 4
    assert len(strangers) == 6


def test_those_that_are_gone_count_for_nobody() -> None:
    strangers: UnprovenPeers[int] = UnprovenPeers(2, 1)
    for peer in range(100):
        assert strangers.admit(peer, f"address {peer}") == []
        strangers.discard(peer)
        strangers.discard(peer)
    assert len(strangers) == 0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4321", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:4321", "%5B2001:db8::1%5D"),
        ("ipv6:[::1]:4321", "[::1]"),
        ("unix:", ""),
        ("unix:/tmp/socket", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_every_address_has_its_turn_however_many_wait_of_another() -> None:
    async def play() -> list[str]:
        turns, order = Turns(), list[str]()

        async def work(address: str) -> None:
            await turns.wait(address)
            order.append(address)

        noisy = [asyncio.ensure_future(work("noisy")) for _ in range(50)]
        await asyncio.sleep(0)
        # Some were cut while they waited: their turns go to nobody.
        for each in noisy[1:10]:
            each.cancel()
        others = [asyncio.ensure_future(work(name)) for name in ("a", "b", "a")]
        await asyncio.gather(*noisy, *others, return_exceptions=True)
        # After all are done it begins anew.
        await work("later")
        return order

    order = asyncio.run(play())
    assert len(order) == 45 and order[-1] == "later"
    assert order.index("a") <= 4 and order.index("b") <= 4
    assert order[:12].count("a") == 2


def test_strangers_have_one_turn_in_each_turn_of_the_loop() -> None:
    """However many wait, whoever has proven something waits for one of them at most."""

    async def play() -> tuple[list[int], list[int]]:
        loop = asyncio.get_running_loop()
        turns, passes, strangers, members = Turns(), [0], list[int](), list[int]()

        def served() -> None:
            """A member's turn, in each pass of the loop."""
            passes[0] += 1
            members.append(len(strangers))
            loop.call_soon(served)

        async def work(address: str) -> None:
            for _ in range(3):
                await turns.wait(address)
                strangers.append(passes[0])

        served()
        await asyncio.gather(*(work(f"address {number % 7}") for number in range(100)))
        return strangers, members

    strangers, members = asyncio.run(play())
    assert len(strangers) == 300 and len(set(strangers)) == 300
    assert all(after - before <= 1 for before, after in pairwise(members))


def test_turns_that_cost_much_leave_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn costs is what is done in it, before its task waits for anything again."""
    now, pauses, burst = [0.0], list[float](), 0.5

    async def play() -> None:
        loop, turns = asyncio.get_running_loop(), Turns(0.25, lambda: now[0], burst)

        def later(delay: float, function: Callable[[], object]) -> None:
            pauses.append(delay)
            now[0] += delay
            loop.call_soon(function)

        async def work() -> None:
            await turns.wait("a")
            now[0] += burst / 2
            await asyncio.sleep(0)

        monkeypatch.setattr(loop, "call_later", later)
        await asyncio.gather(*(work() for _ in range(6)))

    asyncio.run(play())
    assert pauses == [0.5 * burst, 1.5 * burst, 1.5 * burst]


def test_a_request_waits_for_its_turn_among_the_silent_and_a_members_calls_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So there is room for few of them, and one without a turn is cut in the end."""
    addresses, turn = list[str](), asyncio.Event()

    async def mine(turns: Turns, address: str) -> None:
        addresses.append(address)
        if block:
            await turn.wait()

    monkeypatch.setattr(Turns, "wait", mine)
    block = False
    with serving() as cluster, Peer(cluster, "a") as peer:
        peer.step()
        before = len(addresses)
        assert before == 1, "the Join"
        peer.step()
        assert len(addresses) == before
        block = True
        asked = cluster.coordinator.Status.future(pb.StatusRequest(), timeout=PATIENCE)
        wait_until(lambda: len(addresses) > before, "Status waits for its turn")
        assert cluster.servers[0].server.watch.silent == 1
        peer.step()
        assert not asked.done()
        asked.cancel()


@pytest.mark.parametrize("method", ["Push", "Pull", "Exchange"])
def test_refused_calls_of_an_address_take_turns_beyond_a_few(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """With those of methods that take one request, so a flood has a share of the loop's time. An open stream of a
    member from the same address goes on without."""
    turns = list[str]()

    async def counted(_: Turns, address: str) -> None:
        turns.append(address)

    monkeypatch.setattr(Turns, "wait", counted)
    monkeypatch.setattr(registration, "REFUSAL_BURST", 3)
    monkeypatch.setattr(registration, "REFUSALS_PER_SECOND", 1e-6)
    with serving() as cluster, Peer(cluster, "a") as peer:
        peer.step()
        joined = len(turns)
        for _ in range(10):
            with pytest.raises(grpc.RpcError) as caught:
                list(cluster.raw(0, f"/pswire.v1.Shard/{method}")(iter([b"\xff" * 64]), timeout=PATIENCE))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert turns[joined:] == ["127.0.0.1"] * 7
        peer.ready()
        assert len(turns) == joined + 7


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connected(stack: ExitStack, port: int, source: str) -> socket.socket:
    return stack.enter_context(
        socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0))
    )


def test_silent_connections_of_one_address_cut_none_of_another(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "UNAUTHENTICATED", Limit(6, "test"))
    monkeypatch.setattr(served, "UNAUTHENTICATED_PER_ADDRESS", Limit(4, "test"))
    # None is cut for its silence.
    monkeypatch.setattr(framed_socket, "HANDSHAKE_TIMEOUT", 10 * PATIENCE)
    opened = stack.enter_context(listening())
    first = connected(stack, opened.port, QUIET)
    wait_until(lambda: opened.unauthenticated == 1, "the quiet one")
    noisy = [connected(stack, opened.port, NOISY) for _ in range(20)]
    for each in noisy[:16]:
        assert each.recv(1) == b"", "the oldest of the noisy address are cut"
    assert opened.unauthenticated == 5
    with closing(socket_to(opened, "tcp")) as connection:
        connection.send([b"hello"])
        assert connection.receive() == (b"hello", 0)
    first.setblocking(False)
    with pytest.raises(BlockingIOError):
        first.recv(1)


def test_the_limits_leave_room_for_others() -> None:
    assert UNAUTHENTICATED_PER_ADDRESS.value <= UNAUTHENTICATED.value / 2


def calls(watch: Watch, kind: str) -> None:
    """Of `kind`, silent or concurrent: one of a quiet address, then twice as many of a noisy one as there may be."""
    cut: list[str] = []
    few = ConcurrentCalls(4)
    with ExitStack() as stack:
        for number, address in enumerate(["quiet", *["noisy"] * 8]):
            name = f"{address} {number}"
            caller = Caller(lambda name=name: cut.append(name), address=address)  # type: ignore[misc]
            stack.enter_context(watch.first_message(caller) if kind == "silent" else few.count(caller))
    assert cut == [f"noisy {number}" for number in range(1, 6)]


@pytest.mark.parametrize("kind", ["silent", "concurrent"])
def test_calls_of_one_address_cut_none_of_another(kind: str) -> None:
    calls(Watch(silent_limit=4), kind)


def test_a_call_knows_the_address_that_it_comes_from(stack: ExitStack) -> None:
    with serving() as cluster:
        server = cluster.servers[0].server
        seen: list[str] = []
        first_message = server.watch.first_message

        def looked(caller: Caller) -> object:
            seen.append(caller.address)
            return first_message(caller)

        server.watch.first_message = looked  # type: ignore[method-assign, assignment]
        channel = stack.enter_context(grpc.insecure_channel(cluster.hosts))
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        check(b"", timeout=PATIENCE)
        assert seen == ["127.0.0.1"]
