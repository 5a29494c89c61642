"""Servers and workers as two Indexed Jobs with a headless Service, or as a JobSet.

A run succeeds if the servers' Job succeeds: the exit code of server 0 is the verdict. `pswire.exits` says which exit
codes are worth another pod.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pslab.manifests.pods import (
    DATA_PORT,
    GRPC_PORT,
    METRICS_PORT,
    Role,
    config_map,
    disruption_budget,
    labels,
    metadata,
    network_policy,
    template,
)
from pslab.manifests.request import Request
from pswire.exits import ExitCode

# Exit codes of a process that was asked to end, whose command may be fine.
_ASKED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_DISRUPTED: Mapping[str, Any] = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def final_codes(*, copies: bool = False) -> list[int]:
    """Return the exit codes after which the same command would fail in the same way.

    `copies`: of servers with replicas. One that was replaced while it stood still (5) is given a copy.
    """
    final = [int(code) for code in ExitCode if code and not code.restart and code not in _ASKED]
    return [code for code in final if not (copies and code == ExitCode.REFUSED)]


def limits(container: str, restarts: int, *, copies: bool = False) -> dict[str, Any]:
    """Return the fields of an Indexed Job that limit restarts to `restarts` per index; 0 ends the job at a failure.

    A drained or evicted pod does not count. A pod with a final exit code is not retried, and the others go on. All
    other ends count: a lost server (3), SIGKILL (137), SIGTERM (143). `copies`: of servers with replicas, of which one
    that has succeeded says that the job has.
    """
    final = {"containerName": container, "operator": "In", "values": final_codes(copies=copies)}
    if not restarts:
        ending = [{"action": "FailJob", "onExitCodes": final}]
        return {"backoffLimit": 0, "podFailurePolicy": {"rules": ending}}
    rules = [dict(_DISRUPTED), {"action": "FailIndex", "onExitCodes": final}]
    success = {"successPolicy": {"rules": [{"succeededCount": 1}]}} if copies else {}
    return {"backoffLimitPerIndex": restarts, "podFailurePolicy": {"rules": rules}, **success}


SERVER, WORKER = "ps", "worker"
# Seconds for which Kubernetes keeps ended Jobs and the output of their pods: a week.
KEPT = 7 * 86400


def plain(request: Request) -> list[dict[str, Any]]:
    """Return ConfigMap, Service, a Job per role, PodDisruptionBudget and NetworkPolicy.

    Host names are JOB-INDEX.SERVICE.
    """
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
    """Return ConfigMap, JobSet, PodDisruptionBudget and NetworkPolicy.

    Host names are SET-JOB-0-INDEX.SUBDOMAIN, published before a pod is ready.
    """
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
        # Jobs restart their own pods; a restarted set would find its run folder in use.
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
    restarts = request.restarts if role == "worker" or request.comes_back else 0
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "ttlSecondsAfterFinished": KEPT,
        **limits(container, restarts, copies=role == "ps" and request.copies),
        "template": template(request, role, hosts, subdomain, container),
    }
