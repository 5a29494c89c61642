"""A decision stream that ends while orders are on their way: the reason is the server's own, or the connection's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from psserver.service.job import follower
from psserver.service.job.follower import Follower
from pswire.addresses import Address
from pswire.v1 import shard_pb2 as pb
from tests.patience import PATIENCE
from tests.service import loops
from tests.service.loops import begun

ROUNDS = 8

OPENING = pb.Open(job="job", task_index=1, servers=2, secret=b"secret")
ACCEPTED = pb.FollowReply()
ORDERS = pb.Configure(optimizer="x" * 2**17)

Ending = Callable[[Any], Awaitable[None]]


async def refuse(context: Any) -> None:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it cannot take up the checkpoint")


async def deny(context: Any) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no server of this job")


async def shut_down(context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "server 1 ends its job: wait")


async def cut(context: Any) -> None:
    """As a server does to a call that is late. gRPC tells it as it tells a task that it is to end itself."""
    await context.abort(grpc.StatusCode.CANCELLED, "the server ended this call")


async def end(_: Any) -> None:
    return


def fail(*_: object) -> None:
    raise RuntimeError("nobody expects it")


async def lose(ending: Ending, reply: pb.FollowReply = ACCEPTED) -> tuple[str, str]:
    """The cause for which a follower gives up a server that ends its call in this way while it is sent something, and
    the reason that is told."""
    gone: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    async def accept(_: object, context: Any) -> None:
        await context.read()
        await context.write(reply)
        for _ in range(5):
            await context.read()
        await ending(context)

    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        accept, response_serializer=pb.FollowReply.SerializeToString
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("pswire.v1.Shard", {"Follow": method})]
    )
    address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    made = Follower(
        *(1, address, OPENING, 10.0, begun()),
        *(lambda _, cause, why: gone.set_result((cause, why)), fail),
    )

    async def order() -> None:
        while True:
            made.configure(ORDERS)
            await asyncio.sleep(0)

    made.start()
    ordering = asyncio.create_task(order())
    try:
        return await asyncio.wait_for(gone, PATIENCE)
    finally:
        ordering.cancel()
        await made.abandon()
        await server.stop(None)


@pytest.mark.parametrize(
    ("ending", "cause", "words"),
    [
        (refuse, "server", "it cannot take up the checkpoint"),
        (deny, follower.UNTRUSTED, "no server of this job"),
        (shut_down, follower.LOST, "server 1 ends its job: wait"),
        (cut, follower.LOST, "the server ended this call"),
        (end, follower.LOST, "it ended the decision stream"),
    ],
)
def test_a_server_that_ends_its_stream_is_believed_whatever_is_on_its_way(
    ending: Ending, cause: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal is final, or the job would go back to its checkpoint for ever; an end may pass."""
    # What may pass is dialled again, and the limit of that is over.
    monkeypatch.setattr(follower, "SERVER_AWAY", 0.0)

    async def play() -> None:
        for _ in range(ROUNDS):
            found, why = await lose(ending)
            told = why.partition(" was lost: ")[2]
            # An order that is being written may break before the end of a call that may pass is read.
            assert found == cause and (
                told == words or (cause, told) == (follower.LOST, "the connection broke")
            )

    loops.run(play())


def test_a_follower_that_fails_in_an_unexpected_way_counts_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise nothing would be sent to its server any more, and nobody would know."""
    cause, why = loops.run(lose(end, pb.FollowReply(made=[pb.Made(version=1)])))
    assert cause == follower.LOST and "RuntimeError: nobody expects it" in why
    assert "the decisions for server 1 cannot be sent" in caplog.text
