"""Health, as Kubernetes and load balancers ask for it."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.asking import ask
from tests.service.serving import PATIENCE, Cluster, refused

ANSWER = health_pb2.HealthCheckResponse


@pytest.mark.parametrize("service", ["", "pswire.v1.Shard", "pswire.v1.Coordinator"])
def test_health(cluster: Cluster, service: str) -> None:
    for server, channel in enumerate(cluster.channels):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        if server == 1 and service == "pswire.v1.Coordinator":
            with refused(grpc.StatusCode.NOT_FOUND):
                stub.Check(request, timeout=PATIENCE)
        else:
            assert stub.Check(request, timeout=PATIENCE).status == ANSWER.SERVING


def test_health_follows_what_a_server_can_do(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with replicas that has no copy yet is not to be counted as one that may be lost."""
    server, stub = cluster.servers[0].server, health_pb2_grpc.HealthStub(cluster.channels[0])
    for closed, status in ((True, ANSWER.NOT_SERVING), (False, ANSWER.SERVING)):
        ask(server.runtime, lambda closed=closed: setattr(server.host.state, "closed", closed))
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == status
