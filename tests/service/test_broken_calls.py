"""A call whose peer goes at any moment ends without a word: gRPC logs no traceback for it."""

import asyncio
import logging
from typing import Any

import grpc
import pytest
from grpc._cython.cygrpc import ExecuteBatchError

from psserver.service.errors import invalid
from psserver.service.guard.calls import Watch
from psserver.service.net.registration import Call, Registration
from pswire.v1 import coordinator_pb2 as pb
from tests.service.peer import Peer
from tests.service.serving import serving


class Gone:
    """A call's context after its peer has gone, before gRPC knows it: every operation fails."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

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
    method: Any = Registration(Watch(), lambda _: 1.0).method("/service/Method", function)

    async def call() -> None:
        await method.stream_stream(None, Gone())

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call())


@pytest.mark.parametrize(("error", "lines"), [(asyncio.CancelledError, 0), (ValueError, 1)])
def test_a_cancelled_call_is_no_error_of_its_method(
    error: type[BaseException], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC logs it so where the method has not begun, or the server ends; anybody could fill a log with it."""
    Registration(Watch(), lambda _: 1.0)
    log = logging.getLogger("grpc._cython.cygrpc")
    try:
        raise error
    except error:
        log.exception(
            "Exception not handled by _handle_exceptions in servicer method [/pswire.v1.Shard/Follow]"
        )
    assert len([record for record in caplog.records if record.name == log.name]) == lines


def test_a_fault_of_the_server_ends_the_session_in_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the traceback in the server's log: it is nobody's broken stream."""
    with serving() as cluster, Peer(cluster, "w0") as peer:
        job = cluster.servers[0].server.job
        assert job is not None

        def fails(*_: object, **__: object) -> None:
            raise KeyError("what nobody thought of")

        monkeypatch.setattr(job.decider, "handle", fails)
        peer.send(ready=pb.Ready())
        refusal = peer.receive("refusal")
        assert refusal.fatal and "the server failed" in refusal.message and "KeyError" in refusal.message
        monkeypatch.undo()
    assert [record for record in caplog.records if record.exc_info and "a session of w0" in record.message]
