"""Calls by who knows a job's secret, or has recorded somebody who does."""

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc
from google.protobuf.message import Message

from pswire.security.proof import Caller, Metadata, server_named
from pswire.security.secret import Secret
from pswire.v1 import shard_pb2
from tests.service.serving import PATIENCE

FOLLOW, REPLICATE = "/pswire.v1.Shard/Follow", "/pswire.v1.Shard/Replicate"
_REPLIES: dict[str, Any] = {
    FOLLOW: shard_pb2.FollowReply,
    REPLICATE: shard_pb2.ReplicateReply,
}


@dataclass
class Said:
    """All that a caller has sent, and what came back."""

    metadata: Metadata
    messages: list[bytes]
    replies: list[Any]


def prove(address: str, secret: str, path: str, *requests: Message, server: int = 1) -> Said:
    """Say this, with the proofs that belong to it. `server`: which one is meant. Raises RpcError, ProofError."""
    caller = Caller(Secret(secret.encode()), path, server_named(server))
    waiting: SimpleQueue[bytes | None] = SimpleQueue()
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(path, None, _REPLIES[path].FromString)(
            iter(waiting.get, None), timeout=PATIENCE, metadata=caller.metadata
        )
        try:
            caller.check(call.initial_metadata())
            messages = [caller.seal(request.SerializeToString()) for request in requests]
            for message in messages:
                waiting.put(message)
            waiting.put(None)
            return Said(caller.metadata, messages, list(call))
        finally:
            waiting.put(None)


def say_again(address: str, path: str, said: Said) -> list[Any]:
    """Say what was recorded. Raises RpcError."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(path, None, None)(
            iter(said.messages), timeout=PATIENCE, metadata=said.metadata
        )
        return list(call)
