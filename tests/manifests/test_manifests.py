"""``ps-lab manifest``: what it prints for every size of cluster, and what it refuses.

Kubernetes' schemas and the model of a JobSet are the extra `kubernetes-test`; without it that test is skipped.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pslab.cli import main
from pslab.experiment import Experiment
from pslab.manifests.request import KINDS, ManifestError, ManifestRequest
from pswire.exits import ExitCode
from tests.docs.markdown import named

IMAGE = "registry.example:5000/team/digits:1.2"
Documents = list[dict[str, Any]]
PLACE = {"servers": {"cpus": 2, "memory": "4GiB", "spread": True}, "workers": {"cpus": 1, "gpus": 2}}
COPIES = {"cluster": {"replicas": 2}}
CHECKPOINTS = {"run": {"name": "digits", "checkpoint_every": "60s"}}
SCRIPT = {"job": {"script": "train.py", "arguments": ["--epochs", "3"]}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "secret": {"tls": "digits-tls", "claim": "runs"},
    "placed": {"sections": {"cluster": {"place": PLACE, "metrics": True}}, "tls": "digits-tls"},
    "checkpoints": {"sections": CHECKPOINTS, "claim": "runs"},
    "copies": {"sections": COPIES, "claim": "runs"},
    "script": {"sections": SCRIPT, "tls": "digits-tls"},
}


def experiment(servers: int = 2, workers: int = 3, **sections: Any) -> Experiment:
    document = {"run": {"name": "digits"}, "job": {"module": "my_job.py:MyJob"}, **sections}
    cluster = {"servers": servers, "workers": workers, **document.get("cluster", {})}
    return Experiment.parse({**document, "cluster": cluster})


def manifest(kind: str, servers: int = 2, workers: int = 3, sections: Any = None, **given: Any) -> Documents:
    request = ManifestRequest(experiment(servers, workers, **(sections or {})), IMAGE, kind, **given)
    return [*yaml.safe_load_all(request.text())]


def of(kind: str, documents: Documents) -> dict[str, Any]:
    return next(each for each in documents if each["kind"] == kind)


def jobs(documents: Documents) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and specification of the servers' and the workers' Job, also of those that a JobSet will make."""
    for document in documents:
        name = document["metadata"]["name"]
        if document["kind"] == "Job":
            yield name, document["spec"]
        elif document["kind"] == "JobSet":
            for each in document["spec"]["replicatedJobs"]:
                yield f"{name}-{each['name']}-0", each["template"]["spec"]


def pods(documents: Documents) -> tuple[dict[str, Any], dict[str, Any]]:
    """The specifications of a server's and of a worker's pod."""
    server, worker = (job["template"]["spec"] for _, job in jobs(documents))
    return server, worker


def after(container: dict[str, Any], option: str) -> str:
    command = container["command"]
    return str(command[command.index(option) + 1])


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}


# Those who know


def schema_problems(documents: Documents) -> list[str]:
    validate = pytest.importorskip("kubernetes_validate", reason="scripts/install kubernetes-test")
    found = []
    parts = [document for document in documents if document["kind"] != "JobSet"]
    if len(parts) < len(documents):
        job = {"apiVersion": "batch/v1", "kind": "Job"}
        parts += [{**job, "metadata": {"name": name}, "spec": spec} for name, spec in jobs(documents)]
    for part in parts:
        try:
            validate.validate(part, validate.latest_version(), strict=True)
        except validate.ValidationError as error:
            found.append(f"{part['kind']} {'.'.join(map(str, error.path))}: {error.message}")
    return found


def lost(made: Any, said: Any, path: str = "") -> list[str]:
    """Paths of what a model has not taken up: it passes over keys that it does not know."""
    if isinstance(said, dict):
        if not isinstance(made, dict):
            return [path]
        return [each for key in said for each in lost(made.get(key), said[key], f"{path}.{key}")]
    if isinstance(said, list):
        pairs = zip(made or [], said, strict=False)
        found = [path] if len(made or []) != len(said) else []
        return found + [each for n, (m, s) in enumerate(pairs) for each in lost(m, s, f"{path}[{n}]")]
    return [] if made == said else [path]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_own_models_take_them(kind: str, case: str) -> None:
    documents = manifest(kind, **CASES[case])
    assert schema_problems(documents) == []
    if kind == "jobset":
        models = pytest.importorskip("kubeflow_trainer_api.models", reason="scripts/install kubernetes-test")
        said = of("JobSet", documents)
        assert lost(models.JobsetV1alpha2JobSet.from_dict(said).to_dict(), said) == []


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_own_models_find_a_misspelt_key(kind: str) -> None:
    documents = manifest(kind)
    pods(documents)[0]["restartPolcy"] = "Never"
    [found] = schema_problems(documents)
    assert "restartPolcy" in found


# Rules


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_pods_have_what_they_need_and_no_more(kind: str, case: str) -> None:
    documents = manifest(kind, **CASES[case])
    assert {each["kind"] for each in documents} == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget"} | (
        {"JobSet"} if kind == "jobset" else {"Service", "Job"}
    )
    for _, job in jobs(documents):
        pod = job["template"]["spec"]
        [container] = pod["containers"]
        assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
        assert pod["restartPolicy"] == "Never" and pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["allowPrivilegeEscalation"] is False
        mounted = {each["name"]: each.get("readOnly") for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert mounted.keys() == volumes.keys()
        assert all(
            mounted[name] for name, volume in volumes.items() if {"secret", "configMap"} & volume.keys()
        )
        assert not any("secretKeyRef" in str(value) for value in variables(pod).values())


def test_addresses_are_those_of_the_servers_pods() -> None:
    for kind in KINDS:
        for servers in range(1, 9):
            documents = manifest(kind, servers, 65)
            (ps, _), (worker, job) = jobs(documents)
            network = "digits"
            expected = ",".join(f"{ps}-{index}.{network}:7070" for index in range(servers))
            for pod in pods(documents):
                assert after(pod["containers"][0], "--ps-hosts") == expected
                assert pod["subdomain"] == network
            assert job["completions"] == 65 and len(f"{worker}-64") <= 63
    service = of("Service", manifest("jobs"))
    assert service["metadata"]["name"] == network and service["spec"]["clusterIP"] == "None"
    labels = [job["template"]["metadata"]["labels"] for _, job in jobs(manifest("jobs"))]
    assert [service["spec"]["selector"].items() <= each.items() for each in labels] == [True, False]
    assert of("JobSet", manifest("jobset"))["spec"]["network"]["subdomain"] == network


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes_decide_whether_there_is_another_pod(kind: str) -> None:
    servers, workers = (job for _, job in jobs(manifest(kind)))
    assert servers["backoffLimitPerIndex"] == 0 and servers["maxFailedIndexes"] == 0
    assert [rule["action"] for rule in servers["podFailurePolicy"]["rules"]] == ["FailIndex"]
    assert workers["backoffLimitPerIndex"] == 3 and "maxFailedIndexes" not in workers
    drained, final = workers["podFailurePolicy"]["rules"]
    assert drained["action"] == "Ignore" and final["action"] == "FailIndex"
    codes = set(final["onExitCodes"]["values"])
    assert {2, 5, 6, 8} <= codes and not {0, 1, 3, 4, 12, 130, 137, 143} & codes
    servers, _ = (job for _, job in jobs(manifest(kind, **CASES["checkpoints"])))
    assert servers["backoffLimitPerIndex"] == 3 and "maxFailedIndexes" not in servers
    assert after(servers["template"]["spec"]["containers"][0], "--resume") == "auto"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_experiment_asks_of_a_node(kind: str) -> None:
    server, worker = pods(manifest(kind, **CASES["placed"]))
    memory = str(4 * 2**30)
    wants = {"requests": {"cpu": "2", "memory": memory}, "limits": {"memory": memory}}
    assert server["containers"][0]["resources"] == wants
    wants = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}
    assert worker["containers"][0]["resources"] == wants
    [other] = server["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert other["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "ps"
    assert "affinity" not in worker


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_a_file_of_its_role_that_only_the_user_reads(kind: str) -> None:
    for pod, role in zip(pods(manifest(kind, tls="digits-tls")), ("servers", "workers"), strict=True):
        [volume] = [volume for volume in pod["volumes"] if "secret" in volume]
        assert volume["secret"] == {"secretName": f"digits-tls-{role}", "defaultMode": 0o440}
        assert variables(pod)["PS_TLS_KEY"] == "/etc/paramserver-tls/tls.key"
        assert "--insecure" not in pod["containers"][0]["command"]
    assert "--insecure" in pods(manifest(kind))[0]["containers"][0]["command"]


def test_a_script_is_told_by_its_environment() -> None:
    _, worker = pods(manifest("jobs", sections=SCRIPT))
    assert worker["containers"][0]["command"] == ["python", "train.py", "--epochs", "3"]
    assert variables(worker)["PS_HOSTS"] == "digits-ps-0.digits:7070,digits-ps-1.digits:7070"
    assert "job-completion-index" in variables(worker)["PS_TASK_INDEX"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_probed_and_kept_from_drains_unless_they_come_back(kind: str) -> None:
    for tls, way in ((None, "grpc"), ("digits-tls", "tcpSocket")):
        server, worker = pods(manifest(kind, tls=tls))
        assert [*server["containers"][0]["readinessProbe"]] == [way]
        assert "readinessProbe" not in worker["containers"][0]
        assert not any("livenessProbe" in pod["containers"][0] for pod in (server, worker))
    kept = {
        name: of("PodDisruptionBudget", manifest(kind, 3, **case))["spec"] for name, case in CASES.items()
    }
    assert [kept[name]["minAvailable"] for name in ("plain", "copies", "checkpoints")] == [3, 2, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_servers_with_replicas_come_back_and_one_of_them_is_enough(kind: str) -> None:
    documents = manifest(kind, 3, **CASES["copies"])
    (_, servers), (_, workers) = jobs(documents)
    assert servers["successPolicy"] == {"rules": [{"succeededCount": 1}]} and "successPolicy" not in workers
    assert ExitCode.REFUSED not in servers["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    server, worker = pods(documents)
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}} in server["volumes"]
    assert after(server["containers"][0], "--resume") == "auto" and variables(worker)["PS_REPLICAS"] == "2"


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_runs_own_pods_reach_each_other_and_anybody_its_metrics(kind: str) -> None:
    policies = [of("NetworkPolicy", manifest(kind, **CASES[case]))["spec"] for case in ("plain", "placed")]
    [own], [same, metrics] = (policy["ingress"] for policy in policies)
    assert own == same == {"from": [{"podSelector": policies[0]["podSelector"]}]}
    server, _ = pods(manifest(kind, **CASES["placed"]))
    assert metrics == {"ports": [{"port": int(after(server["containers"][0], "--metrics-port"))}]}


def test_the_documented_patch_fits_what_is_made() -> None:
    kustomization = yaml.safe_load(named("docs/guides/kubernetes.md", "kustomization"))
    documents, changed = manifest("jobs"), 0
    for each in kustomization["patches"]:
        for document in documents:
            name = document["metadata"]["name"]
            if document["kind"] != each["target"]["kind"] or each["target"].get("name", name) != name:
                continue
            for step in yaml.safe_load(each["patch"]):
                *above, last = step["path"][1:].split("/")
                found: Any = document
                for part in above:
                    found = found[int(part) if part.isdigit() else part]
                assert step["op"] == "add"
                found[last] = step["value"]
                changed += 1
    assert changed == 7 and schema_problems(documents) == []


def test_text_stays_text() -> None:
    """YAML has words that are not text, such as `no`, and JSON escapes what YAML reads otherwise."""
    arguments = ["no", "1.0", "${name}", 'a "quoted" word', "# none", "é 😀"]
    run, job = {"name": "no"}, {"script": "on", "arguments": arguments}
    documents = manifest("jobs", sections={"run": run, "job": job}, claim="null")
    assert of("Service", documents)["metadata"]["name"] == "no"
    assert of("ConfigMap", documents)["data"] == {
        "experiment.toml": experiment(run=run, job=job).to_toml(),
    }
    server, worker = pods(documents)
    assert worker["containers"][0]["command"] == ["python", "on", *arguments]
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "null"}} in server["volumes"]


# What is refused, and the command


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": "Not An Image"}, "--image: expected"),
        ({"image": ""}, "--image: expected"),
        ({"tls": ""}, "--tls: expected"),
        ({"claim": "Runs"}, "--claim: expected"),
    ],
)
def test_wrong_names_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        ManifestRequest(experiment(), **({"image": IMAGE} | given))


@pytest.mark.parametrize("name", ["Digits", "9digits", "my_run", "d" * 60])
def test_a_run_needs_a_name_that_kubernetes_takes(name: str) -> None:
    with pytest.raises(ManifestError, match=r"run\.name: expected .*--set run\.name="):
        ManifestRequest(experiment(run={"name": name}), IMAGE)


def test_replicas_that_kubernetes_cannot_have_are_refused() -> None:
    with pytest.raises(ManifestError, match=r"cluster\.replicas = 2: expected --claim"):
        manifest("jobs", 3, 3, COPIES)


Patch, Capture = pytest.MonkeyPatch, pytest.CaptureFixture[str]


def ps_lab(patch: Patch, *arguments: object) -> int:
    patch.setattr(sys, "argv", ["ps-lab", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(experiment().to_toml(), encoding="utf-8")
    return path


def test_it_prints_what_kubectl_takes(monkeypatch: Patch, capsys: Capture, file: Path) -> None:
    overrides = ("--set", "cluster.workers=4", "--set", "run.name=other")
    code = ps_lab(monkeypatch, "manifest", file, "--image", IMAGE, *overrides, "--insecure")
    printed, said = capsys.readouterr()
    assert code == 0
    documents = [*yaml.safe_load_all(printed)]
    assert [name for name, _ in jobs(documents)] == ["other-ps", "other-worker"]
    assert [job["completions"] for _, job in jobs(documents)] == [2, 4]
    assert "workers = 4" in of("ConfigMap", documents)["data"]["experiment.toml"]
    assert "without --tls anybody who reaches" in said and "without --claim the run folder" in said


def test_wrong_names_and_files_are_one_sentence(monkeypatch: Patch, capsys: Capture, file: Path) -> None:
    for arguments in (
        (file, "--image", "?", "--insecure"),
        (file.with_name("none.toml"), "--image", IMAGE, "--insecure"),
        # Nobody is without TLS who has not said so.
        (file, "--image", IMAGE),
        (file, "--image", IMAGE, "--tls", "t", "--insecure"),
    ):
        assert ps_lab(monkeypatch, "manifest", *arguments) == ExitCode.USAGE
        printed, said = capsys.readouterr()
        assert printed == "" and said.count("\n") == 1
