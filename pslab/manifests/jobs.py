"""Servers and workers as two Indexed Jobs: beside a headless Service, or in a JobSet, which makes one itself.

Success is the servers' Job: the exit code of server 0 is the verdict of a run.
"""

from collections.abc import Sequence
from typing import Any

from pslab.manifests.failures import limits
from pslab.manifests.pods import (
    DATA_PORT,
    GRPC_PORT,
    METRICS_PORT,
    Network,
    Role,
    config_map,
    disruption_budget,
    labels,
    metadata,
    network_policy,
    template,
)
from pslab.manifests.request import Request

SERVER, WORKER = "ps", "worker"
# Seconds for which Kubernetes keeps Jobs that have ended, and the output of their pods: a week.
KEPT = 7 * 86400


def plain(request: Request) -> list[dict[str, Any]]:
    """ConfigMap, Service, a Job for each role, NetworkPolicy and PodDisruptionBudget. Hosts are JOB-INDEX.SERVICE."""
    hosts = _hosts(request, f"{request.name}-{SERVER}")
    jobs: tuple[tuple[Role, str], ...] = (("ps", SERVER), ("worker", WORKER))
    return [
        config_map(request),
        _service(request),
        *(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata(request, f"{request.name}-{suffix}"),
                "spec": _spec(request, role, hosts, subdomain=request.name),
            }
            for role, suffix in jobs
        ),
        *disruption_budget(request),
        network_policy(request),
    ]


def jobset(request: Request) -> list[dict[str, Any]]:
    """ConfigMap, JobSet, NetworkPolicy, PodDisruptionBudget. Hosts are SET-JOB-0-INDEX.SUBDOMAIN, known before a pod is
    ready."""
    hosts = _hosts(request, f"{request.name}-{SERVER}-0")
    replicated: list[dict[str, Any]] = []
    jobs: tuple[tuple[Role, str], ...] = (("ps", SERVER), ("worker", WORKER))
    for role, suffix in jobs:
        replicated.append(
            {"name": suffix, "replicas": 1, "template": {"spec": _spec(request, role, hosts, subdomain=None)}}
        )
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": request.name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [SERVER]},
        # Jobs start their own pods again; a set that began anew would find its run folder taken.
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": replicated,
    }
    return [
        config_map(request),
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata(request, request.name),
            "spec": spec,
        },
        *disruption_budget(request),
        network_policy(request),
    ]


def _hosts(request: Request, stem: str) -> list[str]:
    return [
        f"{stem}-{index}.{request.name}:{GRPC_PORT}" for index in range(request.experiment.cluster.servers)
    ]


def _service(request: Request) -> dict[str, Any]:
    """Headless: names of servers, also of those that are not ready. Workers need none."""
    ports = [{"name": "grpc", "port": GRPC_PORT}, {"name": "data", "port": DATA_PORT}]
    if request.metrics:
        ports.append({"name": "metrics", "port": METRICS_PORT})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(request, request.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels(request, "ps"),
            "ports": ports,
        },
    }


def _spec(request: Request, role: Role, hosts: Sequence[str], subdomain: str | None) -> dict[str, Any]:
    cluster = request.experiment.cluster
    count = cluster.servers if role == "ps" else cluster.workers
    container = "server" if role == "ps" else "worker"
    restarts = request.restarts if role == "worker" or request.saves else 0
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "ttlSecondsAfterFinished": KEPT,
        **limits(container, restarts),
        "template": template(request, role, Network(hosts, subdomain=subdomain), container),
    }
