"""Calls on which both ends prove that they have the job's secret, where there is one (`pswire.security.proof`)."""

import queue
from collections.abc import Mapping
from typing import Any, Final

import grpc

from pswire.security.proof import COORDINATOR, Caller, ProofError, asked
from pswire.security.secret import Secret
from pswire.v1 import coordinator_pb2 as pb

_REPLIES: Final[Mapping[str, Any]] = {
    "Note": pb.NoteReply,
    "ChangePolicy": pb.ChangePolicyReply,
    "Promote": pb.PromoteReply,
}


async def check_server(caller: Caller, call: Any) -> None:
    """Check the proof of the server at the other end of an asyncio call. Raises ProofError; RpcError if the server
    has ended the call instead."""
    if not caller.metadata:
        return
    answer = await call.initial_metadata()
    if not asked(answer):
        # A call that has ended has no metadata either; how it ended says why.
        await call.read()
    caller.check(answer)


def ask_coordinator(channel: grpc.Channel, method: str, request: Any, timeout: float, secret: Secret) -> Any:
    """Call a method of the coordinator that has one request; return the reply. Raises RpcError, ProofError."""
    caller = Caller(secret, f"/pswire.v1.Coordinator/{method}", COORDINATOR)
    # gRPC takes the request in a thread of its own, which waits here.
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    stream: Any = channel.stream_stream(caller.method, None, _REPLIES[method].FromString)
    call = stream(iter(requests.get, None), timeout=timeout, metadata=caller.metadata)
    try:
        if caller.metadata:
            answer = call.initial_metadata()
            if not asked(answer):
                # As above.
                next(call, None)
            caller.check(answer)
        requests.put(caller.seal(request.SerializeToString()))
        requests.put(None)
        found = list(call)
        if len(found) != 1:
            raise ProofError(f"it gave {len(found)} answers, expected one")
        return found[0]
    finally:
        requests.put(None)
        call.cancel()
