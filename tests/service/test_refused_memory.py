"""A refused call keeps nothing of its request, also while nothing is collected."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from tests.promises import promise
from tests.service.serving import PATIENCE, Cluster, wait_until

CALLS = 5


@contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


# By method, a server and a message that a field's bound refuses, or the method itself.
REFUSED: dict[str, tuple[int, Any]] = {
    "/pswire.v1.Coordinator/Join": (0, pb.JoinRequest(worker="w" * 65)),
    "/pswire.v1.Coordinator/Session": (0, pb.SessionRequest(hello=pb.Hello(worker="w" * 65))),
    "/pswire.v1.Shard/Exchange": (0, shard_pb2.ExchangeRequest(pull=shard_pb2.PullRequest(job="none"))),
    "/pswire.v1.Shard/Follow": (1, shard_pb2.FollowRequest(decisions=shard_pb2.Decisions())),
}


@promise("Requests that a server refuses take none of its memory afterwards.")
@pytest.mark.parametrize("name", REFUSED)
def test_no_request_outlives_its_refusal(cluster: Cluster, name: str) -> None:
    server, message = REFUSED[name]
    data, kind = message.SerializeToString(), type(message)
    with uncollected():
        before = alive(kind)
        for _ in range(CALLS):
            with pytest.raises(grpc.RpcError):
                list(cluster.raw(server, name)(iter([data]), timeout=PATIENCE))
        # The answer is on its way before the server's coroutine has ended.
        wait_until(lambda: alive(kind) <= before, "the requests to be freed")
