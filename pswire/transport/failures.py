"""Reasons of failed calls, for people. gRPC's own texts put the reason last, after addresses and layers of its own."""

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import grpc

from pswire.logs.lines import escaped

LONGEST: Final = 300
# The limit of characters to examine: gRPC allows 8 KiB.
MAX_EXAMINED: Final = 10_000

# What grpc.aio reports if a call ends while a message is being written, instead of what the server or the connection
# says.
_WRITE_BROKE: Final = "Internal error from Core"

# Codes that say only that a connection or process broke, ended, timed out, or cut this call off to make room.
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
    """How a call has ended, in gRPC's terms, if gRPC itself does not report it, or not correctly."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def write_broke(error: grpc.RpcError) -> bool:
    """Return True if a message that was being written at the end of the call hides the reason."""
    return error.code() == grpc.StatusCode.INTERNAL and error.details() == _WRITE_BROKE


def may_pass(error: grpc.RpcError) -> bool:
    """Return True if the failure says only that the peer is gone, dying, starting or busy, so that a retry may succeed.

    Any other failure is the peer's answer.
    """
    return error.code() in _PASSING or write_broke(error)


def method_failed(error: grpc.RpcError) -> bool:
    """Return True if the peer's method raised an unexpected error. The state of the stream's other end is unchanged."""
    return error.code() == grpc.StatusCode.UNKNOWN


def reason(error: grpc.RpcError) -> str:
    """Return why a call failed, in at most `LONGEST` characters: the words of our server, or the end of gRPC's."""
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and error.details() in ("", "Deadline Exceeded"):
        return "no answer in time"
    if write_broke(error):
        return "the connection broke"
    text = " ".join((error.details() or "")[:MAX_EXAMINED].split())
    while (outer := _LAYERS.match(text)) and outer.end() < len(text):
        text = text[outer.end() :].rstrip("]")
    if not text:
        return str(error.code().name)
    if text == "Cancelling all calls":
        # gRPC's text for a server that shuts down.
        return "it shut down"
    text = escaped(text, MAX_EXAMINED)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


# Seconds that a call may take to end after a failed write.
PATIENCE: Final = 5.0


class CallEnding:
    """Finds the true end of one call. Made before anything is written; owned by the loop's thread.

    A write that fails sets the call's status to INTERNAL, before the real status arrives or instead of it: a peer that
    refuses a message would look like one that is gone. gRPC reports each status as soon as it is set.
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
        """Return `error`, which the call raised, or, if it reports a failed write, the reason. That may be OK."""
        if not write_broke(error):
            return error
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), PATIENCE)
        return self._found or error


def _immediate(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value
    coroutine.close()
    raise AssertionError("expected a call that has a status")
