"""Rules for every manifest, and Kubernetes' own schemas if the package kubernetes-validate is installed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

# Without StatefulSet, which restarts pods whatever their exit code.
KINDS = ("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "Job", "JobSet")
# Kinds of Kubernetes itself; the others are custom resources.
BUILT_IN = ("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "Job")
# Exit codes after which another pod would fail in the same way: usage, refused, user code, diverged.
FINAL = {2, 5, 6, 8}
# Of these, what another pod does not repeat: a server with replicas that was replaced while it stood still.
REPLACED = 5
# Exit codes of transient failures: a lost server, SIGKILL, SIGTERM.
TRANSIENT = {3, 137, 143}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(m|Ki|Mi|Gi)?")

Document = Mapping[str, Any]


def problems(documents: Sequence[Document]) -> list[str]:
    """Return a sentence for each violation."""
    found = [*_objects(documents)]
    for owner, policy, pod in templates(documents):
        found += [f"{owner}: {problem}" for problem in (*_restarts(policy), *_pod(pod), *_mounts(pod))]
    for owner, job in jobs(documents):
        found += [
            f"{owner}: {problem}" for problem in _job(job, copies=_replicated(documents) and _serves(job))
        ]
    return [*found, *_hosts(documents), *_servers_are_there(documents), *_copies(documents)]


def schema_problems(documents: Sequence[Document]) -> list[str] | None:
    """Return violations of Kubernetes' schemas; None if kubernetes-validate is not installed."""
    if find_spec("kubernetes_validate") is None:
        return None
    import kubernetes_validate

    found = []
    for document in documents:
        for each in schema_parts(document):
            try:
                kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(part) for part in error.path)
                found.append(f"{each['kind']} {each['metadata']['name']}: {where}: {error.message}")
    return found


def schema_parts(document: Document) -> Iterator[dict[str, Any]]:
    """Yield the parts of a document that Kubernetes has schemas for, such as the Jobs of a JobSet."""
    name = document["metadata"]["name"]
    if document["kind"] in BUILT_IN:
        yield dict(document)
    else:
        for each in document["spec"]["replicatedJobs"]:
            metadata = {"name": f"{name}-{each['name']}"}
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **each["template"]}


def jobs(documents: Sequence[Document]) -> Iterator[tuple[str, Document]]:
    """Yield name and specification of every Job, including those that a JobSet will make."""
    for document in documents:
        name = document["metadata"]["name"]
        if document["kind"] == "Job":
            yield name, document["spec"]
        elif document["kind"] == "JobSet":
            for each in document["spec"]["replicatedJobs"]:
                yield f"{name}-{each['name']}-0", each["template"]["spec"]


def templates(documents: Sequence[Document]) -> Iterator[tuple[str, str, Document]]:
    """Yield owner, restart policy and specification of every pod."""
    for name, job in jobs(documents):
        pod = job["template"]["spec"]
        yield name, pod.get("restartPolicy", ""), pod


def _objects(documents: Sequence[Document]) -> Iterator[str]:
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind not in KINDS:
            yield f"{kind} {name}: expected one of {', '.join(KINDS)}"
        if not _LABEL.fullmatch(name):
            yield f"{kind} {name}: expected a name of at most 63 lower-case letters, digits and dashes"
    if len({document["metadata"].get("namespace") for document in documents}) > 1:
        yield "the objects are in different namespaces"
    if not [*templates(documents)]:
        yield "there are no pods"


def _restarts(policy: str) -> Iterator[str]:
    if policy != "Never":
        yield f"restartPolicy: expected Never, got {policy!r}"


def _pod(pod: Document) -> Iterator[str]:
    security = pod.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield "the pod may run as root"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the pod gets a token for the Kubernetes API, which it does not need"
    for container in pod["containers"]:
        own = container.get("securityContext", {})
        dropped = own.get("capabilities", {}).get("drop")
        if own.get("allowPrivilegeEscalation") is not False or dropped != ["ALL"]:
            yield f"container {container['name']} has privileges that it does not need"
        if not own.get("readOnlyRootFilesystem"):
            yield f"container {container['name']} may write to its root file system"
        if not container["command"] or not all(isinstance(word, str) for word in container["command"]):
            yield f"container {container['name']}: expected a command of words"
        for table in container.get("resources", {}).values():
            yield from (
                f"resources: {text!r}" for text in table.values() if not _QUANTITY.fullmatch(str(text))
            )
        for variable in container.get("env", ()):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                yield f"{variable['name']}: expected a mounted file, got a secret in the environment, which dumps show"


def _mounts(pod: Document) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = set()
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            mounted.add(mount["name"])
            volume = volumes.get(mount["name"])
            if volume is None:
                yield f"volumeMounts: there is no volume {mount['name']}"
            elif ("secret" in volume or "configMap" in volume) and not mount.get("readOnly"):
                yield f"volumeMounts: {mount['name']} is not read-only"
            elif "secret" in volume and volume["secret"]["defaultMode"] & 0o007:
                yield f"volumes: any user in the pod may read {mount['name']}"
    yield from (f"volumes: {name} is not mounted" for name in volumes.keys() - mounted)


def _replicated(documents: Sequence[Document]) -> bool:
    """Return whether the experiment has replicas."""
    files = [
        text
        for document in documents
        if document["kind"] == "ConfigMap"
        for text in document["data"].values()
    ]
    return any(re.search(r"^replicas = 2$", text, re.MULTILINE) for text in files)


def _serves(job: Document) -> bool:
    return any(
        container["command"][:1] == ["ps-server"] for container in job["template"]["spec"]["containers"]
    )


def _copies(documents: Sequence[Document]) -> Iterator[str]:
    """Check that of servers with replicas one may go at a time, and that all see one volume."""
    if not _replicated(documents):
        return
    servers = sum(job["completions"] for _, job in jobs(documents) if _serves(job))
    kept = [each["spec"]["minAvailable"] for each in documents if each["kind"] == "PodDisruptionBudget"]
    if kept != [servers - 1]:
        yield f"PodDisruptionBudget: expected {servers - 1} of {servers} servers with replicas, got {kept}"
    for _, job in jobs(documents):
        pod = job["template"]["spec"]
        if not _serves(job):
            continue
        if not pod.get("affinity", {}).get("podAntiAffinity"):
            yield "servers with replicas: expected a podAntiAffinity, got none"
        if not any("persistentVolumeClaim" in volume for volume in pod["volumes"]):
            yield "servers with replicas: expected one persistentVolumeClaim for all, got none"


def _job(job: Document, *, copies: bool) -> Iterator[str]:
    if job.get("completionMode") != "Indexed" or job.get("completions") != job.get("parallelism"):
        yield "expected an Indexed Job, all of whose pods run at once"
    if job["template"]["spec"].get("restartPolicy") != "Never":
        yield "podFailurePolicy needs restartPolicy Never"
    rules = job.get("podFailurePolicy", {}).get("rules", [])
    ending = [rule for rule in rules if rule["action"] in ("FailJob", "FailIndex")]
    codes = {code for rule in ending for code in rule.get("onExitCodes", {}).get("values", ())}
    replaced = {REPLACED} if copies else set()
    if not codes >= FINAL - replaced:
        yield f"podFailurePolicy: exit codes {sorted(FINAL - codes)} would be retried"
    transient = TRANSIENT | replaced | {0}
    if codes & transient:
        yield f"podFailurePolicy: exit codes {sorted(codes & transient)} would end the job"
    per_index = job.get("backoffLimitPerIndex")
    if per_index is None and any(rule["action"] == "FailIndex" for rule in rules):
        yield "FailIndex needs backoffLimitPerIndex"
    if per_index is None and job.get("backoffLimit") is None:
        yield "expected backoffLimit or backoffLimitPerIndex, got neither"


def _hosts(documents: Sequence[Document]) -> Iterator[str]:
    """Check that host names are short enough for DNS."""
    for name, job in jobs(documents):
        host = f"{name}-{job['completions'] - 1}"
        if not _LABEL.fullmatch(host):
            yield f"{host}: expected a host name of at most 63 characters"


def _servers_are_there(documents: Sequence[Document]) -> Iterator[str]:
    """Check that every address in --ps-hosts belongs to a pod in an existing network, on a port that it opens."""
    known = {
        f"{name}-{index}.{network}:{port['containerPort']}"
        for name, job in jobs(documents)
        for network in _networks(documents, job)
        for index in range(job["completions"])
        for container in job["template"]["spec"]["containers"]
        for port in container.get("ports", ())
    }
    for owner, _, pod in templates(documents):
        for container in pod["containers"]:
            words = container["command"]
            for address in words[words.index("--ps-hosts") + 1].split(",") if "--ps-hosts" in words else ():
                if address not in known:
                    yield f"{owner}: --ps-hosts has {address}, which belongs to no pod"


def _networks(documents: Sequence[Document], job: Document) -> list[str]:
    """Return the subdomains in which the Job's pods have names."""
    found = []
    for document in documents:
        spec, name = document.get("spec", {}), document["metadata"]["name"]
        if document["kind"] == "JobSet":
            found.append(spec["network"]["subdomain"])
        if document["kind"] == "Service" and spec["clusterIP"] == "None":
            selected = spec["selector"].items() <= job["template"]["metadata"]["labels"].items()
            if selected and job["template"]["spec"].get("subdomain") == name:
                found.append(name)
    return found
