"""Bytes that are no message, or too many, on every RPC of every server: INVALID_ARGUMENT, and what was expected."""

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from psserver.service.net import registration
from pswire import bounds
from pswire.bounds import HEADER_BYTES, LARGEST
from pswire.v1 import coordinator_pb2, options_pb2, shard_pb2
from pswire.v1 import coordinator_pb2 as pb
from tests.service.conftest import Unharmed
from tests.service.peer import Peer
from tests.service.serving import PATIENCE, Cluster, refused

INVALID = grpc.StatusCode.INVALID_ARGUMENT

# A tag without end, and a length that runs past the end.
GARBAGE = {"ones": b"\xff" * 20, "length": b"\x0a\x7f\x00"}

SERVICES = (
    coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"],
    shard_pb2.DESCRIPTOR.services_by_name["Shard"],
)
METHODS: list[MethodDescriptor] = [method for service in SERVICES for method in service.methods]
# A server that has its coordinator refuses another one before it reads; see test_follow.
READING = [method for method in METHODS if method.name != "Follow"]

# Methods that answer any request that parses.
ANSWERED = ("Status", "FindCoordinator")


def path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def servers_of(method: MethodDescriptor) -> list[int]:
    if method.containing_service.name == "Coordinator":
        return [0]
    # The other one follows a coordinator, and may be asked by anybody.
    return [1] if method.name == "Follow" else [0, 1]


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("method", READING, ids=[method.name for method in READING])
def test_garbage(cluster: Cluster, unharmed: Unharmed, method: MethodDescriptor, garbage: bytes) -> None:
    for server in servers_of(method):
        with unharmed(), refused(INVALID, "expected a", method.input_type.name, f"got {len(garbage)} bytes"):
            list(cluster.raw(server, path(method))(iter([garbage]), timeout=PATIENCE))


def test_an_empty_message_is_a_message(cluster: Cluster, unharmed: Unharmed) -> None:
    """All fields at their defaults: refused for what it says, or rather does not say."""
    for method in METHODS:
        if method.name in ANSWERED:
            continue
        for server in servers_of(method):
            with unharmed(), pytest.raises(grpc.RpcError) as caught:
                list(cluster.raw(server, path(method))(iter([b""]), timeout=PATIENCE))
            refusals = (INVALID, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)
            assert caught.value.code() in refusals, method.name
            assert "expected" in caught.value.details() or "follows" in caught.value.details(), method.name


def beyond(kind: Descriptor) -> list[tuple[int, str, Message]]:
    """Texts and bytes of such a message, and of those in it, one too long: the bound, the field, and the message."""
    found: list[tuple[int, str, Message]] = []
    for row in bounds.TABLE:
        if row.message != kind.name:
            continue
        match row.bound:
            case bounds.Text(most):
                value: str | bytes = "x" * (most + 1)
            case bounds.Data(most):
                value = bytes(most + 1)
            case bounds.Nested():
                for most, name, nested in beyond(kind.fields_by_name[row.field].message_type):
                    found.append((most, name, GetMessageClass(kind)(**{row.field: nested})))
                continue
            case _:
                continue
        found.append((most, f"{row.message}.{row.field}", GetMessageClass(kind)(**{row.field: value})))
    return found


# A Join is counted before; see test_bad_sessions.
BOUNDED = [
    method for method in READING if method.name not in (*ANSWERED, "Join") and beyond(method.input_type)
]


@pytest.mark.parametrize("method", BOUNDED, ids=[method.name for method in BOUNDED])
def test_each_request_is_held_to_its_bounds(
    cluster: Cluster, unharmed: Unharmed, method: MethodDescriptor
) -> None:
    """`tests/pswire/test_bounds.py` has each field."""
    _, name, message = min(beyond(method.input_type), key=lambda each: each[0])
    for server in servers_of(method):
        with unharmed(), refused(INVALID, f"{name}: expected"):
            data = message.SerializeToString()
            list(cluster.raw(server, path(method))(iter([data]), timeout=PATIENCE))


def test_garbage_after_the_hello_ends_that_session_only(cluster: Cluster, unharmed: Unharmed) -> None:
    peer = Peer(cluster, "babbler")
    hello = pb.SessionRequest(hello=peer.hello()).SerializeToString()
    replies = cluster.raw(0, "/pswire.v1.Coordinator/Session")(iter([hello, b"\xff\xff"]), timeout=PATIENCE)
    events = [event for reply in replies for event in pb.SessionReply.FromString(reply).events]
    assert events[0].HasField("welcome")
    assert events[-1].refusal.fatal
    assert "expected a pswire.v1.SessionRequest, got 2 bytes that do not parse" in events[-1].refusal.message
    # Its place is free again: it may come back with a clean stream.
    with unharmed():
        pass
    with Peer(cluster, "babbler") as again:
        assert again.ready()


def test_garbage_between_chunks(cluster: Cluster, peer: Peer, unharmed: Unharmed) -> None:
    grant = peer.ready()
    header = shard_pb2.PushRequest(header=peer.header(grant, 0)).SerializeToString()
    with unharmed(), refused(INVALID, "expected a pswire.v1.PushRequest, got 3 bytes that do not parse"):
        list(cluster.raw(0, "/pswire.v1.Shard/Push")(iter([header, b"\xff\xff\xff"]), timeout=PATIENCE))
    exchange = shard_pb2.ExchangeRequest(push=peer.header(grant, 0)).SerializeToString()
    with unharmed(), refused(INVALID, "expected a pswire.v1.ExchangeRequest, got 3 bytes that do not parse"):
        list(cluster.raw(0, "/pswire.v1.Shard/Exchange")(iter([exchange, b"\xff\xff\xff"]), timeout=PATIENCE))


# What is too large

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
        "Commit",
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
