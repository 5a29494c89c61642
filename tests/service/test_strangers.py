"""Calls that cost memory: of peers that have proven nothing, and of each member, only so many are kept, and the oldest
goes first."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from psserver.service.errors import RequestRefused
from psserver.service.guard.authorization import address_of
from psserver.service.guard.calls import CallPeer, Watch
from tests.promises import promise


@promise("Of too many calls and connections that have proven nothing the oldest is cut; no other call is.")
def test_calls_that_have_spoken_are_not_cut() -> None:
    cut: list[str] = []
    watch = Watch(most_unproven=1)

    async def call() -> None:
        with watch.first_message(CallPeer(lambda: cut.append("spoken"))):
            pass
        silent, next_one = (CallPeer(lambda name=name: cut.append(name)) for name in ("silent", "next"))  # type: ignore[misc]
        with watch.first_message(silent), watch.unproven(next_one):
            assert cut == ["silent"]

    asyncio.run(call())


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


# Members: calls may hold memory that only the transport sees.


class Calls:
    """Calls by number, and which of them were cut. What is cut ends."""

    def __init__(self, watch: Watch, stack: ExitStack) -> None:
        self.watch, self._stack = watch, stack
        self.cut: list[int] = []
        self._ends: dict[int, ExitStack] = {}

    def begin(self, number: int, *, ends: bool = True) -> CallPeer:
        def cut() -> None:
            self.cut.append(number)
            if ends:
                self.end(number)

        caller = CallPeer(cut)
        self._ends[number] = self._stack.enter_context(ExitStack())
        self._ends[number].enter_context(self.watch.watching(caller))
        return caller

    def end(self, number: int) -> None:
        self._ends[number].close()


@pytest.fixture
def calls() -> Iterator[Calls]:
    with ExitStack() as stack:
        yield Calls(Watch(most_of_member=2), stack)


def test_a_members_oldest_calls_are_cut_and_others_are_not_touched(calls: Calls) -> None:
    calls.watch.claim("other", calls.begin(0))
    for number in range(1, 5):
        caller = calls.begin(number)
        for _ in range(2):
            calls.watch.claim("greedy", caller)
    assert calls.cut == [1, 2]


def test_calls_that_are_cut_and_have_not_ended_yet_cost_no_other_of_its_member(calls: Calls) -> None:
    for number in range(4):
        calls.watch.claim("greedy", calls.begin(number, ends=False))
    assert calls.cut == [0, 1]
    calls.end(0)
    calls.watch.claim("greedy", calls.begin(4))
    assert calls.cut == [0, 1, 2]


def test_a_member_that_does_not_read_gets_no_more_calls(calls: Calls) -> None:
    """What was cut while a large message was on its way is held by the transport until its peer reads or goes."""

    async def run() -> None:
        watch, writing = calls.watch, []
        for number in range(2):
            caller = calls.begin(number)
            watch.claim("mute", caller)
            caller.writing = asyncio.get_running_loop().create_future()
            writing.append(caller.writing)
            caller.cancel()
        with pytest.raises(RequestRefused, match="2 calls with answers that it does not read"):
            watch.claim("mute", calls.begin(2))
        watch.claim("other", calls.begin(3))
        # Its peer has gone.
        writing[0].set_exception(ConnectionError("gone"))
        await asyncio.sleep(0)
        watch.claim("mute", calls.begin(4))
        writing[1].set_result(None)

    asyncio.run(run())
