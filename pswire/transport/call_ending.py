"""How a call of grpc.aio has ended: what its peer or the connection says, and not that a write failed."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import grpc

from pswire.transport.failures import CallEnded, write_broke

# Seconds that a call whose write has failed may take to end.
PATIENCE: Final = 5.0


class CallEnding:
    """Of one call; made before anything is written. The loop's thread owns it.

    A write that fails sets the call's status to INTERNAL, before its own status is there or in place of it: a peer that
    refuses what it is sent would look like one that is gone. gRPC tells of each status at once when it is set.
    """

    def __init__(self, call: Any) -> None:
        self._found: CallEnded | None = None
        self._known = asyncio.Event()
        call.add_done_callback(self._set)

    def _set(self, call: Any) -> None:
        found = CallEnded(_immediate(call.code()), _immediate(call.details()) or "")
        if not write_broke(found):
            self._found = found
            self._known.set()

    async def explained(self, error: grpc.RpcError) -> grpc.RpcError:
        """`error`, which the call has raised, or why the write failed of which it tells. That may be OK."""
        if not write_broke(error):
            return error
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), PATIENCE)
        return self._found or error


def _immediate(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What it returns, for which it waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value
    coroutine.close()
    raise AssertionError("expected a call that has a status")
