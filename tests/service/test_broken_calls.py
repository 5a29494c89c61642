"""A call whose peer goes at any moment ends without a word: gRPC logs no traceback for it."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from psserver.service.errors import invalid
from psserver.service.limits.watch import Watch
from psserver.service.rpc.registration import Call, Registration


class Gone:
    """A call's context after its peer has gone, before gRPC knows it: every operation fails."""

    async def read(self) -> bytes:
        return b"message"

    async def write(self, message: bytes) -> None:
        raise ExecuteBatchError("execute_batch", (), ())

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise ExecuteBatchError("execute_batch", (), ())


async def refuses(call: Call) -> None:
    await call.receive()
    raise invalid("no")


async def answers(call: Call) -> None:
    await call.receive()
    await call.send((b"yes",))


async def was_cut(call: Call) -> None:
    call.caller.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("function", [refuses, answers, was_cut])
def test_a_peer_that_has_gone_is_a_cancelled_call(function: Any) -> None:
    """Which is what gRPC takes in silence; any other error it logs, as an error of the method."""
    method: Any = Registration(Watch(), lambda _: 1.0).method(function)

    async def call() -> None:
        await method.stream_stream(None, Gone())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call())
