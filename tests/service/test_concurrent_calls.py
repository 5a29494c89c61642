"""Calls that may hold memory which only the transport sees: few of each kind, and whose they are is known."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from psserver.service.errors import Refused
from psserver.service.guard.calls import Caller, MemberCalls, Watch
from psserver.service.guard.ledger import MIB


class Calls:
    """Calls by number, and which of them were cut. What is cut ends."""

    def __init__(self, watch: Watch, stack: ExitStack) -> None:
        self.watch, self._stack = watch, stack
        self.cut: list[int] = []
        self._ends: dict[int, ExitStack] = {}

    def begin(self, number: int, *, ends: bool = True) -> Caller:
        def cut() -> None:
            self.cut.append(number)
            if ends:
                self.end(number)

        caller = Caller(cut)
        self._ends[number] = self._stack.enter_context(ExitStack())
        self._ends[number].enter_context(self.watch.watching(caller))
        return caller

    def end(self, number: int) -> None:
        self._ends[number].close()


@pytest.fixture
def calls() -> Iterator[Calls]:
    with ExitStack() as stack:
        yield Calls(Watch(), stack)


def test_a_members_oldest_calls_are_cut_and_others_are_not_touched(calls: Calls) -> None:
    members = MemberCalls(calls.watch, 2)
    members.claim("other", calls.begin(0))
    for number in range(1, 5):
        caller = calls.begin(number)
        for _ in range(2):
            members.claim("greedy", caller)
    assert calls.cut == [1, 2]


def test_a_member_that_does_not_read_gets_no_more_calls(calls: Calls) -> None:
    """What was cut while a large message was on its way is held by the transport until its peer reads or goes."""

    async def run() -> None:
        members = MemberCalls(calls.watch, 2)
        writing = []
        for number in range(2):
            caller = calls.begin(number)
            members.claim("mute", caller)
            writing.append(asyncio.get_running_loop().create_future())
            calls.watch.leave_unread(caller, 2 * MIB, writing[-1])
            calls.end(number)
        assert calls.watch.message_bytes == 4 * MIB
        with pytest.raises(Refused, match="2 calls with answers that it does not read"):
            members.claim("mute", calls.begin(2))
        members.claim("other", calls.begin(3))
        # Its peer has gone.
        writing[0].set_exception(ConnectionError("gone"))
        await asyncio.sleep(0)
        members.claim("mute", calls.begin(4))
        assert calls.watch.message_bytes == 2 * MIB
        writing[1].set_result(None)

    asyncio.run(run())
    assert calls.watch.message_bytes == 0
