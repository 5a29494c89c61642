"""A refused call keeps nothing of its request, also while nothing is collected; what is too large is never parsed."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from psserver.service.net import registration
from psserver.service.net.loop import HeavyWork, Owner
from pswire.bounds import HEADER_BYTES, LARGEST
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import options_pb2, shard_pb2
from tests.service.serving import PATIENCE, Cluster, refused
from tests.service.test_garbage import METHODS, path, servers_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
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


def refuse(cluster: Cluster, name: str, data: bytes, server: int = 0) -> None:
    for _ in range(CALLS):
        with pytest.raises(grpc.RpcError):
            list(cluster.raw(server, name)(iter([data]), timeout=PATIENCE))


JOIN = pb.JoinRequest(worker="w" * 65)
# A message of each method that a field's bound refuses, or the method itself.
REFUSED: dict[str, tuple[int, Any]] = {
    "/pswire.v1.Coordinator/Join": (0, JOIN),
    "/pswire.v1.Coordinator/Session": (0, pb.SessionRequest(hello=pb.Hello(worker="w" * 65))),
    "/pswire.v1.Coordinator/GatherEpoch": (0, pb.GatherEpochRequest(worker="w" * 65)),
    "/pswire.v1.Coordinator/ChangePolicy": (0, pb.ChangePolicyRequest(name="no JSON")),
    "/pswire.v1.Shard/Pull": (0, shard_pb2.PullRequest(worker="nobody", job="none")),
    "/pswire.v1.Shard/Exchange": (0, shard_pb2.ExchangeRequest(pull=shard_pb2.PullRequest(job="none"))),
    "/pswire.v1.Shard/Follow": (1, shard_pb2.FollowRequest(decisions=shard_pb2.Decisions())),
    "/pswire.v1.Shard/Replicate": (0, shard_pb2.ReplicateRequest(parts=[shard_pb2.ReplicatePart()])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_request_outlives_its_refusal(cluster: Cluster, name: str) -> None:
    server, message = REFUSED[name]
    data, kind = message.SerializeToString(), type(message)
    with uncollected():
        before = alive(kind)
        refuse(cluster, name, data, server)
        # The answer is on its way before the server's coroutine has ended; what a later call says comes after that.
        cluster.status()
        assert alive(kind) <= before


# gRPC itself takes no larger message than a Join may be.
SMALLER = [method for method in METHODS if method.name != "Join"]


@pytest.mark.parametrize("method", SMALLER, ids=[method.name for method in SMALLER])
def test_what_is_too_large_is_not_parsed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    def parsed(kind: Any, data: bytes) -> Any:
        raise AssertionError(f"{len(data)} bytes are parsed as a {kind.DESCRIPTOR.name}")

    # This is no chunk, and the first message of its call.
    streams = method.name in ("Push", "Exchange", "Follow", "Replicate")
    largest = HEADER_BYTES if streams else LARGEST[path(method)]
    monkeypatch.setattr(registration, "parsed", parsed)
    for server in servers_of(method):
        with refused(INVALID, "at most", str(largest)):
            list(cluster.raw(server, path(method))(iter([b"\n\0" * (largest // 2 + 1)]), timeout=PATIENCE))


def test_only_methods_that_need_it_take_large_messages() -> None:
    large = {path(method).rpartition("/")[2] for method in METHODS if LARGEST[path(method)] > 2**16}
    assert large == {
        "Join",
        "Session",
        "GatherEpoch",
        "ChangePolicy",
        "Push",
        "Exchange",
        "Follow",
        "Replicate",
    }
    assert all(
        method.GetOptions().Extensions[options_pb2.largest] in (0, LARGEST[path(method)])
        for method in METHODS
    )


class Held:
    """What a failed piece of work has at hand."""


@pytest.mark.parametrize("on_pool", [False, True])
def test_failed_work_keeps_nothing(on_pool: bool) -> None:
    async def play() -> None:
        owner = Owner()
        owner.begin()
        heavy = HeavyWork(owner)

        def fails(held: Held) -> Callable[[], None]:
            def work() -> None:
                raise ValueError(repr(held))

            return work

        async def run() -> None:
            held = Held()
            await (heavy.on_pool(fails(held)) if on_pool else heavy.run(1, fails(held)))

        with uncollected():
            for _ in range(CALLS):
                with pytest.raises(ValueError):
                    await run()
            # A thread of the pool keeps its last piece of work until the next one.
            await heavy.on_pool(lambda: None)
            await heavy.on_pool(lambda: None)
            assert alive(Held) <= 1
        heavy.close()

    asyncio.run(play())
