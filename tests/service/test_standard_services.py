"""Health and reflection, as grpcurl and load balancers use them."""

import asyncio

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psserver.service.net.services import tell_health
from tests.service.serving import PATIENCE, Cluster, refused

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", ["", "pswire.v1.Shard", "pswire.v1.Coordinator"])
def test_health(cluster: Cluster, service: str) -> None:
    for server, channel in enumerate(cluster.channels):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        if server == 1 and service == "pswire.v1.Coordinator":
            with refused(grpc.StatusCode.NOT_FOUND):
                stub.Check(request, timeout=PATIENCE)
        else:
            assert stub.Check(request, timeout=PATIENCE).status == SERVING


def test_health_follows_what_a_server_can_do() -> None:
    """A server with replicas that has no copy yet is not to be counted as one that may be lost."""

    async def run() -> list[int]:
        status, found = health.aio.HealthServicer(), []
        states = iter([True, False, False, True])
        set_status = status.set

        async def noted(service: str, code: int) -> None:
            assert service == ""
            found.append(code)
            await set_status(service, code)

        status.set = noted
        try:
            await tell_health(status, lambda: next(states), 0)
        except RuntimeError:
            return found
        raise AssertionError("it ends with the states")

    assert asyncio.run(run()) == [health_pb2.HealthCheckResponse.NOT_SERVING, SERVING]


def ask(cluster: Cluster, server: int, **request: str) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(cluster.channels[server])
    (reply,) = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(**request)]), timeout=PATIENCE
    )
    return reply


@pytest.mark.parametrize(
    ("service", "methods"),
    [
        (
            "pswire.v1.Coordinator",
            [*"Join Session Commit Status GatherEpoch Note ChangePolicy Promote FindCoordinator".split()],
        ),
        ("pswire.v1.Shard", ["Push", "Pull", "Exchange", "Follow", "Replicate"]),
    ],
)
def test_reflection_describes_them(cluster: Cluster, service: str, methods: list[str]) -> None:
    """From the description alone a tool can make every call, by JSON."""
    reply = ask(cluster, 0, file_containing_symbol=service)
    files = [FileDescriptorProto.FromString(f) for f in reply.file_descriptor_response.file_descriptor_proto]
    described = {f"{f.package}.{s.name}": [m.name for m in s.method] for f in files for s in f.service}
    assert described[service] == methods
    message = ask(cluster, 0, file_containing_symbol="pswire.v1.PushHeader")
    assert message.file_descriptor_response.file_descriptor_proto
