"""Why a call failed, for people. gRPC's own texts put the reason last, behind addresses and layers of itself."""

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import grpc

from pswire.logs.texts import escaped

LONGEST: Final = 300
# Characters that are looked at: gRPC takes 8 KiB.
MOST: Final = 10_000

# grpc.aio's word for a call that ended while a message was on its way. It takes the place of what the server or the
# connection says (`pswire.transport.failures`).
_WRITE_BROKE: Final = "Internal error from Core"

# Of connections and processes: that they broke, ended or did not answer in time, or cut this call off to make room.
_PASSING: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)

# "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: X" is X.
_LAYERS = re.compile(
    r"^(.*last error: |errors resolving .*: |[A-Z_]+: |ipv[46]:\S+: |unix\S*: |Failed to connect to remote host: )"
)


class CallEnded(grpc.RpcError):
    """How a call has ended, in gRPC's terms, where gRPC itself does not say it, or not so."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def write_broke(error: grpc.RpcError) -> bool:
    """Did a message that was on its way when the call ended take the place of the reason?"""
    return error.code() == grpc.StatusCode.INTERNAL and error.details() == _WRITE_BROKE


def may_pass(error: grpc.RpcError) -> bool:
    """Does the failure say of the peer only that it is gone, dying, starting or busy? It may answer another time; any
    other failure is its answer. (`tests/service/test_dying_servers.py` holds gRPC to it.)"""
    return error.code() in _PASSING or write_broke(error)


def method_failed(error: grpc.RpcError) -> bool:
    """Has the peer's method raised something that nobody foresaw? What a stream's other end remembers is as it was."""
    return error.code() == grpc.StatusCode.UNKNOWN


def reason(error: grpc.RpcError) -> str:
    """Why a call failed, in at most `LONGEST` characters: the words of a server of ours, or the end of gRPC's."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and error.details() in ("", "Deadline Exceeded"):
        return "no answer in time"
    if write_broke(error):
        return "the connection broke"
    text = " ".join((error.details() or "")[:MOST].split())
    while (outer := _LAYERS.match(text)) and outer.end() < len(text):
        text = text[outer.end() :].rstrip("]")
    if not text:
        return str(error.code().name)
    if text == "Cancelling all calls":
        # gRPC's word for a server that ends.
        return "it shut down"
    text = escaped(text, MOST)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


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
