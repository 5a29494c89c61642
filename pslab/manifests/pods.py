"""Pod templates of servers and workers: the daemons' own commands, run by a user other than root."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pslab.manifests.request import Request

Role = Literal["ps", "worker"]

# Ports of a server; it has a pod of its own.
GRPC_PORT, DATA_PORT, METRICS_PORT = 7070, 7071, 7072
CONFIG, CONFIG_KEY, SECRETS = "/etc/paramserver", "experiment.toml", "/etc/paramserver-tls"
# User id that the Dockerfile creates.
USER = 10001
# Seconds from SIGTERM to SIGKILL, in which server 0 writes weights and summary.
GRACE = 60
# Seconds between two readiness probes.
PROBE_PERIOD = 10
# Satisfies Kubernetes' "restricted" pod security standard.
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
# For temporary files of libraries; everything else is in the run folder.
SCRATCH = "/tmp"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def labels(request: Request, role: Role | None = None) -> dict[str, str]:
    """Return the labels of the run's objects, or of its pods of one role."""
    found = {"app.kubernetes.io/name": "paramserver", "app.kubernetes.io/instance": request.name}
    return found if role is None else {**found, "app.kubernetes.io/component": role}


def metadata(request: Request, name: str) -> dict[str, Any]:
    """Return the metadata of a top-level object."""
    place = {} if request.namespace is None else {"namespace": request.namespace}
    return {"name": name, **place, "labels": labels(request)}


def config_map(request: Request) -> dict[str, Any]:
    """Return a ConfigMap with the experiment file, which contains no secrets."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(request, f"{request.name}-experiment"),
        "data": {CONFIG_KEY: request.experiment.to_toml()},
    }


def network_policy(request: Request) -> dict[str, Any]:
    """Return a policy by which only the run's own pods reach its pods, and any pod its metrics."""
    own: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": labels(request)}}]}
    metrics = [{"ports": [{"port": METRICS_PORT}]}] if request.metrics else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(request, request.name),
        "spec": {
            "podSelector": {"matchLabels": labels(request)},
            "policyTypes": ["Ingress"],
            "ingress": [own, *metrics],
        },
    }


def disruption_budget(request: Request) -> list[dict[str, Any]]:
    """Forbid draining a server's node while servers hold the only copy of the model; nothing with checkpoints.

    With replicas one server at a time may go.
    """
    if request.comes_back and not request.copies:
        return []
    # For pods of a Job, Kubernetes accepts a number only. Ended pods are not evicted and block no node.
    spec = {
        "minAvailable": request.experiment.cluster.servers - request.copies,
        "selector": {"matchLabels": labels(request, "ps")},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    name = f"{request.name}-ps"
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(request, name),
            "spec": spec,
        }
    ]


def template(
    request: Request, role: Role, hosts: Sequence[str], subdomain: str | None, container: str
) -> dict[str, Any]:
    """Return a pod template. `hosts`: addresses of the servers. The restart policy is Never: a restart is a new pod."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        **({} if subdomain is None else {"subdomain": subdomain}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": dict(_POD_SECURITY),
        **_spreading(request, role),
        "containers": [_container(request, role, hosts, container)],
        "volumes": [volume for volume, _ in _volumes(request, role)],
    }
    return {"metadata": {"labels": labels(request, role)}, "spec": spec}


def _container(request: Request, role: Role, hosts: Sequence[str], name: str) -> dict[str, Any]:
    command = _server(request, hosts) if role == "ps" else _worker(request, hosts)
    ports = [("grpc", GRPC_PORT), ("data", DATA_PORT)]
    if request.metrics:
        ports.append(("metrics", METRICS_PORT))
    resources = _resources(request, role)
    return {
        "name": name,
        "image": request.image,
        "command": command,
        "env": [*_variables(request, role, hosts)],
        **({"ports": _ports(ports)} if role == "ps" else {}),
        **({"resources": resources} if resources else {}),
        **({"readinessProbe": _ready(request)} if role == "ps" else {}),
        "securityContext": dict(_CONTAINER_SECURITY),
        "volumeMounts": [mount for _, mount in _volumes(request, role)],
    }


def _ready(request: Request) -> dict[str, Any]:
    """Return a probe by gRPC's health service; with TLS, which Kubernetes does not support there, by TCP."""
    way = {"grpc": {"port": GRPC_PORT}} if request.tls is None else {"tcpSocket": {"port": GRPC_PORT}}
    return {**way, "periodSeconds": PROBE_PERIOD}


def _ports(ports: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"name": name, "containerPort": port} for name, port in ports]


def _place(hosts: Sequence[str]) -> list[str]:
    return ["--ps-hosts", ",".join(hosts), "--task-index", "auto"]


def _server(request: Request, hosts: Sequence[str]) -> list[str]:
    command = ["ps-server", *_place(hosts), "--bind", "0.0.0.0", "--data-port", str(DATA_PORT)]
    command += ["--config", f"{CONFIG}/{CONFIG_KEY}", "--out", request.run_folder]
    if request.tls is None:
        # Requested by the user; without it, a server refuses to listen.
        command.append("--insecure")
    if request.metrics:
        command += ["--metrics-port", str(METRICS_PORT)]
    return [*command, "--resume", "auto"] if request.comes_back else command


def _worker(request: Request, hosts: Sequence[str]) -> list[str]:
    job = request.experiment.job
    if job.script:
        return ["python", job.script, *job.arguments]
    return ["ps-worker", *_place(hosts), "--config", f"{CONFIG}/{CONFIG_KEY}"]


def _variables(request: Request, role: Role, hosts: Sequence[str]) -> list[dict[str, Any]]:
    values: dict[str, str] = {"PYTHONUNBUFFERED": "1", "HOME": SCRATCH}
    script = role == "worker" and request.experiment.job.script
    if script:
        cluster = request.experiment.cluster
        values |= {"PS_WIRE_DTYPE": cluster.wire_dtype, "PS_TRANSPORT": cluster.transport}
    if request.tls is not None:
        files = {"PS_TLS_CA": "ca.crt", "PS_TLS_CERT": "tls.crt", "PS_TLS_KEY": "tls.key"}
        values |= {name: f"{SECRETS}/{file}" for name, file in files.items()}
    if role == "worker" and request.copies:
        values["PS_REPLICAS"] = str(request.experiment.cluster.replicas)
    if script:
        values["PS_HOSTS"] = ",".join(hosts)
    found: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    if script:
        found.append({"name": "PS_TASK_INDEX", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}})
    return found


def _volumes(request: Request, role: Role) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the volumes, each with its mount."""
    config = {"name": f"{request.name}-experiment"}
    found: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"name": "experiment", "configMap": config},
            {"name": "experiment", "mountPath": CONFIG, "readOnly": True},
        ),
    ]
    if request.tls is not None:
        # Readable by the pod's group, which is that of the user.
        secret = {
            "secretName": f"{request.tls}-{'servers' if role == 'ps' else 'workers'}",
            "defaultMode": 0o440,
        }
        found.append(
            ({"name": "tls", "secret": secret}, {"name": "tls", "mountPath": SECRETS, "readOnly": True})
        )
    if role == "ps":
        kept: Mapping[str, Any] = {"emptyDir": {}}
        if request.claim is not None:
            kept = {"persistentVolumeClaim": {"claimName": request.claim}}
        found.append(({"name": "runs", **kept}, {"name": "runs", "mountPath": "/runs"}))
    found.append(({"name": "scratch", "emptyDir": {}}, {"name": "scratch", "mountPath": SCRATCH}))
    return found


def _resources(request: Request, role: Role) -> dict[str, Any]:
    """Return requests and limits from [cluster.place]. The memory is also a limit, so that an excess is visible."""
    place = request.experiment.cluster.place
    wants, limit = {}, {}
    cpus = place.servers.cpus if role == "ps" else place.workers.cpus
    if cpus:
        wants["cpu"] = str(cpus)
    if role == "ps" and place.servers.bytes:
        wants["memory"] = limit["memory"] = quantity(place.servers.bytes)
    if role == "worker" and place.workers.gpus:
        limit["nvidia.com/gpu"] = str(place.workers.gpus)
    return {name: table for name, table in (("requests", wants), ("limits", limit)) if table}


def quantity(number: int) -> str:
    """Format bytes in the largest unit that leaves a whole number."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _spreading(request: Request, role: Role) -> dict[str, Any]:
    """Spread workers over nodes; keep servers on separate nodes if the experiment requires it, or, with replicas, if
    there are nodes enough."""
    if role == "worker":
        even = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels(request, role)},
        }
        return {"topologySpreadConstraints": [even]}
    others = {
        "labelSelector": {"matchLabels": labels(request, role)},
        "topologyKey": "kubernetes.io/hostname",
    }
    if request.experiment.cluster.place.servers.spread:
        apart: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
    elif request.copies:
        apart = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]
        }
    else:
        return {}
    return {"affinity": {"podAntiAffinity": apart}}
