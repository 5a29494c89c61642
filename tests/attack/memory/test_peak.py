"""Real servers under --memory-limit 1GiB stay below it whatever is tried, and the honest worker goes on.

The peak is the most that was resident at once (VmHWM), this process not counted.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

import grpc
import pytest

from pswire.model.plan import VariableSpec, make_plan
from pswire.v1 import shard_pb2
from tests.attack.memory.http2 import Connection, grpc_message
from tests.attack.memory.target import Target, target
from tests.service.peer import join_request, messages
from tests.service.serving import PATIENCE

EXCHANGE, PULL = "/pswire.v1.Shard/Exchange", "/pswire.v1.Shard/Pull"
# For a call that is to be kept: as long as the attack lasts.
KEPT = 120.0
MOST = 2**30


class Streams:
    """Open exchange streams; each has said something and keeps still."""

    def __init__(self, target: Target, stack: ExitStack) -> None:
        self._method = target.cluster.raw(0, EXCHANGE)
        self._over = Event()
        stack.callback(self._over.set)

    def open(self, *said: bytes) -> Any:
        def requests() -> Iterator[bytes]:
            yield from said
            self._over.wait(KEPT)

        return self._method(requests(), timeout=KEPT)


def attachments(target: Target) -> str:
    """One member asks for shared memory on 60 streams."""
    member, given = target.member("greedy"), 0
    with ExitStack() as stack:
        streams, calls = Streams(target, stack), []
        for _ in range(60):
            calls.append(streams.open(target.attach(member)))
            with suppress(grpc.RpcError):
                given += not shard_pb2.ExchangeReply.FromString(next(calls[-1])).attached.refusal
        most = target.shared()
    member.leave()
    return f"{given} were given, one after the other; {most / 2**20:.0f} MiB shared at the end"


def endless_pushes(target: Target) -> str:
    """40 streams push one ticket and never end."""
    member = target.member("greedy")
    grant = member.ready()
    header, first, *_ = messages(member.header(grant, 0), bytes(target.nbytes), 2**20)
    said = [shard_pb2.ExchangeRequest(push=header.header), shard_pb2.ExchangeRequest(chunk=first.chunk)]
    with ExitStack() as stack:
        streams = Streams(target, stack)
        calls = [streams.open(*(each.SerializeToString() for each in said)) for _ in range(40)]
        ended = 0
        for call in calls[:-1]:
            with suppress(grpc.RpcError):
                next(call)
            ended += call.code() is not None
        target.step()
    member.leave()
    return f"{ended} of 40 were cut"


def unread_versions(target: Target) -> str:
    """16 members open four pulls of each new version and read nothing, while an honest one trains."""
    members = [target.member(f"slow-{number}") for number in range(16)]
    connections = [Connection(target.address, window=0) for _ in members]
    for turn in range(8):
        for member, connection in zip(members, connections, strict=True):
            member.grant = None if turn % 2 else member.grant
            with suppress(Exception):
                request = grpc_message(member.request(member.ready()).SerializeToString())
                for _ in range(4):
                    connection.say(connection.open(PULL), request, 0.1)
        target.step()
    for connection in connections:
        connection.close()
    for member in members:
        member.stream.close()
    return f"version {target.cluster.status().version} was reached"


def large_claims(target: Target) -> str:
    """Joins whose model has 1 GiB, and 2**40 elements."""
    refused = []
    for elements in (2**28, 2**40):
        plan = make_plan([VariableSpec("w", (elements,))], 1)
        try:
            target.cluster.coordinator.Join(join_request(plan, worker="large", session="s"), timeout=PATIENCE)
        except grpc.RpcError as error:
            refused.append(error.code().name)
    return f"refused: {', '.join(refused)}"


@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("attack", "mebibytes", "trained"),
    [
        (attachments, 16, True),
        (large_claims, 1, False),
        (endless_pushes, 32, True),
        (unread_versions, 16, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_peak_is_below_the_limit(
    attack: Callable[[Target], str], mebibytes: float, trained: bool
) -> None:
    with target(mebibytes, trained=trained) as found:
        before = found.resident
        told = attack(found)
        found.step()
        assert before < found.peak <= MOST, told
