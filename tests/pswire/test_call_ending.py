"""How a call of grpc.aio has ended, whatever its writes say."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest

from pswire.transport import failures
from pswire.transport.failures import CallEnded, CallEnding, reason
from tests.patience import PATIENCE

Status = tuple[grpc.StatusCode, str]

BROKE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, "another job")
GONE = (grpc.StatusCode.UNAVAILABLE, "Socket closed")
ENDED = (grpc.StatusCode.OK, "")


class Call:
    """A call whose status is set as gRPC does it: the last one stands."""

    def __init__(self) -> None:
        self.status: Status | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def set(self, status: Status) -> None:
        self.status = status
        for callback in self._callbacks:
            callback(self)

    async def code(self) -> grpc.StatusCode:
        assert self.status is not None
        return self.status[0]

    async def details(self) -> str:
        assert self.status is not None
        return self.status[1]


def explained(before: Sequence[Status], later: Sequence[Status] = ()) -> Status:
    """Of a call that has had the statuses `before`, and raises the last one of them."""

    async def play() -> Status:
        call = Call()
        ending = CallEnding(call)
        for status in before:
            call.set(status)
        for status in later:
            asyncio.get_running_loop().call_soon(call.set, status)
        error = await asyncio.wait_for(ending.explained(CallEnded(*before[-1])), PATIENCE)
        return error.code(), reason(error)

    return asyncio.run(play())


@pytest.mark.parametrize("status", [REFUSED, GONE])
def test_a_call_without_a_broken_write_speaks_for_itself(status: Status) -> None:
    assert explained([status]) == status


@pytest.mark.parametrize("status", [REFUSED, GONE, (grpc.StatusCode.INTERNAL, "the weights are not finite")])
def test_a_broken_write_hides_nothing(status: Status) -> None:
    assert explained([status, BROKE]) == status
    assert explained([BROKE], later=[status]) == status


def test_a_call_that_ended_well_did_so() -> None:
    assert explained([ENDED, BROKE])[0] == grpc.StatusCode.OK


def test_a_call_that_never_says_why_has_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "PATIENCE", 0.01)
    assert explained([BROKE]) == (grpc.StatusCode.INTERNAL, "the connection broke")
