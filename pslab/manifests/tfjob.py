"""The TFJob of Kubeflow's training operator (version 1 of it): TF_CONFIG says where the servers are.

Its policy "ExitCode" takes exit codes up to 127 for permanent, also 3, a server that was lost. So workers come again on
any failure; servers never, for what they held is gone.
"""

from typing import Any

from pslab.manifests.pods import (
    DATA_PORT,
    Network,
    Role,
    config_map,
    disruption_budget,
    metadata,
    network_policy,
    template,
)
from pslab.manifests.request import Request

# What the operator looks for.
CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222


def tfjob(request: Request) -> list[dict[str, Any]]:
    """ConfigMap, TFJob, NetworkPolicy and PodDisruptionBudget."""
    cluster = request.experiment.cluster
    spec = {
        "runPolicy": {
            # Servers end by themselves, when log and weights are written.
            "cleanPodPolicy": "None",
            "backoffLimit": request.restarts * cluster.workers,
        },
        # Else worker 0 alone decides when the job is over.
        "successPolicy": "AllWorkers",
        "tfReplicaSpecs": {
            "PS": _replicas(request, "ps", cluster.servers, "Never"),
            "Worker": _replicas(request, "worker", cluster.workers, "OnFailure"),
        },
    }
    return [
        config_map(request),
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": metadata(request, request.name),
            "spec": spec,
        },
        *disruption_budget(request),
        network_policy(request),
    ]


def _replicas(request: Request, role: Role, count: int, restart: str) -> dict[str, Any]:
    pods = template(request, role, Network((), PORT, PORT_NAME, DATA_PORT), CONTAINER)
    # The operator writes its own over it, from beside the template.
    del pods["spec"]["restartPolicy"]
    return {"replicas": count, "restartPolicy": restart, "template": pods}
