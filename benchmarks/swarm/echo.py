"""A bare gRPC echo: answers each commit at once, with a grant and a version, and decides nothing.

Says {"port": n}, then serves until its input ends. Its argument: bytes of a version.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from benchmarks.swarm.swarm import model_of
from pswire.transport.channels import SERVER_OPTIONS
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

# How a push's further chunks begin: with `chunk`. A request with a commit begins with another field.
CHUNK = 15 << 3 | 2


def answering(nbytes: int) -> Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]:
    """A method that answers each commit of a stream."""
    model = model_of(nbytes, 1)
    # An answer's chunk has the same number as that of a push.
    chunks = model.chunks[0]
    size = 4 * model.plan.shards[0].elements

    async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        ticket = 0
        async for message in requests:
            if message[0] == CHUNK:
                continue
            ticket += 1
            yield _head(ticket, size) + chunks[0]
            for chunk in chunks[1:]:
                yield chunk

    return exchange


def _head(ticket: int, size: int) -> bytes:
    fate = pb.Disposition(ticket=ticket, fate=pb.Disposition.FATE_APPLIED, version=ticket, weight=1.0)
    grant = pb.Grant(ticket=ticket + 1, version=ticket, index=ticket)
    events = [pb.SessionEvent(disposition=fate), pb.SessionEvent(grant=grant)]
    return shard_pb2.ExchangeReply(bytes=size, events=events).SerializeToString()


async def main(nbytes: int) -> None:
    """Serve until the input ends."""
    server = grpc.aio.server(options=SERVER_OPTIONS(10.0))
    handlers = {"Exchange": grpc.stream_stream_rpc_method_handler(answering(nbytes))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
