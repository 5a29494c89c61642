"""``ps-lab manifest``: what it prints for every size of cluster, what it refuses, and that a fault would be found."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pslab.cli import main
from pslab.manifests.request import ManifestError, Request, name_from
from pswire.exits import ExitCode
from tests.docs.markdown import named
from tests.manifests.checking import jobs, problems, schema_problems, templates
from tests.manifests.made import IMAGE, KINDS, experiment, manifest, request

Documents = list[dict[str, Any]]


@pytest.mark.parametrize("tls", [None, "digits-tls"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_size_of_cluster_is_as_it_must_be(kind: str, tls: str | None) -> None:
    """1 to 8 servers, 1 to 64 workers."""
    for servers in range(1, 9):
        for workers in range(1, 65):
            documents = manifest(kind, servers, workers, tls=tls)
            assert problems(documents) == []
            assert "StatefulSet" not in {document["kind"] for document in documents}


def test_servers_are_found_by_names_that_stay() -> None:
    def hosts(kind: str) -> str:
        [pod] = [
            pod for owner, _, pod in templates(manifest(kind)) if owner.removesuffix("-0").endswith("worker")
        ]
        command = pod["containers"][0]["command"]
        return str(command[command.index("--ps-hosts") + 1])

    assert hosts("jobs") == "digits-ps-0.digits:7070,digits-ps-1.digits:7070"
    assert hosts("jobset") == "digits-ps-0-0.digits:7070,digits-ps-0-1.digits:7070"


@pytest.mark.parametrize("kind", ["jobs", "jobset"])
def test_exit_codes_decide_whether_there_is_another_pod(kind: str) -> None:
    servers, workers = (job for _, job in jobs(manifest(kind, restarts=5)))
    assert servers["backoffLimit"] == 0 and workers["backoffLimitPerIndex"] == 5
    [final] = [rule for rule in workers["podFailurePolicy"]["rules"] if rule["action"] == "FailIndex"]
    codes = final["onExitCodes"]["values"]
    assert {2, 5, 6, 8} <= set(codes) and not {0, 1, 3, 4, 12, 130, 137, 143} & set(codes)
    assert workers["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    servers, _ = (
        job for _, job in jobs(manifest(kind, sections={"run": {"checkpoint_every": "60s"}}, claim="runs"))
    )
    assert servers["backoffLimitPerIndex"] == 3
    assert servers["template"]["spec"]["containers"][0]["command"][-2:] == ["--resume", "auto"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_experiment_asks_of_a_node(kind: str) -> None:
    place = {"servers": {"cpus": 2, "memory": "4GiB", "spread": True}, "workers": {"cpus": 1, "gpus": 2}}
    pods = {owner: pod for owner, _, pod in templates(manifest(kind, sections={"cluster": {"place": place}}))}
    servers, workers = ([pod for owner, pod in pods.items() if role in owner] for role in ("ps", "worker"))
    [server], [worker] = servers, workers
    assert server["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi"},
        "limits": {"memory": "4Gi"},
    }
    assert worker["containers"][0]["resources"] == {
        "requests": {"cpu": "1"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    [other] = server["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (
        other["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "ps"
        and "affinity" not in worker
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_a_file_of_its_role_that_only_the_user_reads(kind: str) -> None:
    for owner, _, pod in templates(manifest(kind, tls="digits-tls")):
        [volume] = [volume for volume in pod["volumes"] if "secret" in volume]
        role = "servers" if "-ps" in owner else "workers"
        assert volume["secret"] == {"secretName": f"digits-tls-{role}", "defaultMode": 0o440}
        [container] = pod["containers"]
        assert {"name": "tls", "mountPath": "/etc/paramserver-tls", "readOnly": True} in container[
            "volumeMounts"
        ]
        said = {each["name"]: each.get("value") for each in container["env"]}
        assert said["PS_TLS_KEY"] == "/etc/paramserver-tls/tls.key"


def test_a_script_is_told_by_its_environment() -> None:
    sections = {"job": {"script": "train.py", "arguments": ["--epochs", "3"]}}
    documents = manifest("jobs", sections=sections)
    [pod] = [pod for owner, _, pod in templates(documents) if owner.endswith("worker")]
    [container] = pod["containers"]
    assert container["command"] == ["python", "train.py", "--epochs", "3"] and problems(documents) == []
    said = {each["name"]: each for each in container["env"]}
    assert said["PS_HOSTS"]["value"] == "digits-ps-0.digits:7070,digits-ps-1.digits:7070"
    assert "job-completion-index" in said["PS_TASK_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]


def budgets(documents: Documents) -> list[Any]:
    return [each["spec"]["minAvailable"] for each in documents if each["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_probed_and_kept_from_drains_unless_they_come_back(kind: str) -> None:
    for tls, way in ((None, "grpc"), ("digits-tls", "tcpSocket")):
        for owner, _, pod in templates(manifest(kind, 2, tls=tls)):
            [container] = pod["containers"]
            assert (way in container.get("readinessProbe", {})) == ("-ps" in owner)
            assert "livenessProbe" not in container
    assert budgets(manifest(kind, 2)) == [2]
    assert budgets(manifest(kind, 2, sections={"run": {"checkpoint_every": "60s"}}, claim="runs")) == []


def test_the_documented_patch_fits_what_is_made() -> None:
    kustomization = yaml.safe_load(named("docs/guides/kubernetes.md", "kustomization"))
    documents = manifest("jobs")
    changed = 0
    for each in kustomization["patches"]:
        for document in documents:
            metadata = document["metadata"]
            same_name = each["target"].get("name", metadata["name"]) == metadata["name"]
            if document["kind"] == each["target"]["kind"] and same_name:
                for step in yaml.safe_load(each["patch"]):
                    assert step["op"] == "add"
                    put(step["path"][1:].replace("/", "."), step["value"])(document)
                    changed += 1
    assert changed == 7 and problems(documents) == []
    assert not schema_problems(documents)


COPIES = {"cluster": {"replicas": 2}}


@pytest.mark.parametrize("kind", ["jobs", "jobset"])
@pytest.mark.parametrize("servers", [2, 3, 5])
def test_servers_with_replicas_come_back_apart_and_go_one_at_a_time(kind: str, servers: int) -> None:
    documents = manifest(kind, servers, 3, COPIES, claim="runs", restarts=4)
    assert problems(documents) == [] and not schema_problems(documents)
    assert budgets(documents) == [servers - 1]
    (_, job), (_, workers) = jobs(documents)
    assert job["backoffLimitPerIndex"] == 4 and job["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert "successPolicy" not in workers
    [final] = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailIndex"]
    assert ExitCode.REFUSED not in final["onExitCodes"]["values"]
    pod = job["template"]["spec"]
    [other] = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert other["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert pod["containers"][0]["command"][-2:] == ["--resume", "auto"]
    [worker] = workers["template"]["spec"]["containers"]
    assert {"name": "PS_REPLICAS", "value": "2"} in worker["env"]


def test_replicas_that_kubernetes_cannot_have_are_refused() -> None:
    with pytest.raises(ManifestError, match=r"cluster\.replicas = 2: expected --claim"):
        request(3, 3, COPIES)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("4.spec.minAvailable", 3, "expected 2 of 3 servers with replicas, got [3]"),
        ("2.spec.template.spec.affinity", {}, "expected a podAntiAffinity"),
        (
            "2.spec.template.spec.volumes.1",
            {"name": "runs", "emptyDir": {}},
            "expected one persistentVolumeClaim",
        ),
        (
            "2.spec.podFailurePolicy.rules.1.onExitCodes.values",
            [2, 5, 6, 8],
            "exit codes [5] would end the job",
        ),
    ],
)
def test_a_planted_fault_of_replicas_is_found(path: str, value: Any, words: str) -> None:
    documents = copy.deepcopy(manifest("jobs", 3, 3, COPIES, claim="runs"))
    assert problems(documents) == []
    put(path, value)(documents)
    assert any(words in problem for problem in problems(documents)), problems(documents)


# A fault in what is made would be found


def drop(path: str) -> Callable[[Documents], None]:
    """Take away what is at a path such as "2.spec.podFailurePolicy"."""

    def change(documents: Documents) -> None:
        *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
        found: Any = documents
        for part in above:
            found = found[part]
        del found[last]

    return change


def put(path: str, value: Any) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
        found: Any = documents
        for part in above:
            found = found[part]
        found[last] = value

    return change


POD = "2.spec.template.spec"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("2.kind", "StatefulSet"), "StatefulSet digits-ps: expected one of"),
        (put("2.metadata.name", "Digits"), "at most 63 lower-case letters"),
        (put("3.metadata.namespace", "other"), "in different namespaces"),
        (drop("2.spec.podFailurePolicy"), "exit codes [2, 5, 6, 8] would be retried"),
        (put("3.spec.podFailurePolicy.rules.1.onExitCodes.values", [2, 3, 5, 6, 8]), "exit codes [3] would end"),
        (drop("3.spec.backoffLimitPerIndex"), "FailIndex needs backoffLimitPerIndex"),
        (drop("2.spec.backoffLimit"), "got neither"),
        (put(f"{POD}.restartPolicy", "Always"), "restartPolicy: expected Never"),
        (put("2.spec.completionMode", "NonIndexed"), "expected an Indexed Job"),
        (put("2.spec.parallelism", 1), "all of whose pods run at once"),
        (put(f"{POD}.securityContext.runAsUser", 0), "may run as root"),
        (drop(f"{POD}.automountServiceAccountToken"), "gets a token"),
        (drop(f"{POD}.containers.0.securityContext"), "has privileges"),
        (put(f"{POD}.containers.0.command", []), "expected a command"),
        (put(f"{POD}.containers.0.resources", {"limits": {"memory": "4GiB"}}), "resources: '4GiB'"),
        (
            put(f"{POD}.containers.0.env", [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            "got a secret in the environment",
        ),
        (drop(f"{POD}.containers.0.volumeMounts.1.readOnly"), "tls is not read-only"),
        (put(f"{POD}.volumes.1.secret.defaultMode", 0o444), "any user in the pod may read tls"),
        (drop(f"{POD}.volumes.1"), "there is no volume tls"),
        (drop(f"{POD}.containers.0.volumeMounts.1"), "tls is not mounted"),
        (put("1.spec.selector", {"app.kubernetes.io/instance": "another"}), "which belongs to no pod"),
        (put("1.spec.clusterIP", "10.0.0.1"), "which belongs to no pod"),
        (put(f"{POD}.subdomain", "elsewhere"), "which belongs to no pod"),
        (put(f"{POD}.containers.0.ports.0.containerPort", 7072), "which belongs to no pod"),
        (put("2.metadata.name", "d" * 62), "at most 63 characters"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(change: Callable[[Documents], None], words: str) -> None:
    documents = copy.deepcopy(manifest("jobs", tls="digits-tls"))
    assert problems(documents) == []
    change(documents)
    assert any(words in problem for problem in problems(documents)), problems(documents)


# What is asked for


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": "Not An Image"}, "--image: expected"),
        ({"image": ""}, "--image: expected"),
        ({"name": "Digits"}, "--name: expected"),
        ({"name": "9digits"}, "--name: expected"),
        ({"name": "d" * 60}, "--name: expected at most 48 characters"),
        ({"namespace": "a/b"}, "--namespace: expected"),
        ({"tls": ""}, "--tls: expected"),
        ({"claim": "Runs"}, "--claim: expected"),
    ],
)
def test_wrong_names_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        Request(experiment(), **({"image": IMAGE, "name": "digits"} | given))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("digits", "digits"),
        ("My Run (2)", "my-run-2"),
        ("2nd", "ps-2nd"),
        ("x" * 80, "x" * 48),
        ("a" * 47 + "--b", "a" * 47),
    ],
)
def test_a_name_is_made_of_the_runs(text: str, name: str) -> None:
    assert name_from(text) == name
    assert request(1, 1).name == "digits"


def test_no_name_can_be_made_of_nothing() -> None:
    with pytest.raises(ManifestError, match="expected letters or digits .* give --name"):
        name_from("***")


# The command

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
    code = ps_lab(monkeypatch, "manifest", file, "--image", IMAGE, "--set", "cluster.workers=4", "--insecure")
    printed, said = capsys.readouterr()
    assert code == 0
    documents = [*yaml.safe_load_all(printed)]
    assert [document["kind"] for document in documents] == [
        "ConfigMap",
        "Service",
        "Job",
        "Job",
        "PodDisruptionBudget",
        "NetworkPolicy",
    ]
    assert (
        documents[3]["spec"]["completions"] == 4 and "workers = 4" in documents[0]["data"]["experiment.toml"]
    )
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


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_have_a_port_that_may_be_reached(kind: str) -> None:
    """And nothing else from outside of the run."""
    documents = manifest(kind, 2, 3, {"cluster": {"metrics": True}}, tls="t")
    assert problems(documents) == []
    _, _, server = next(templates(documents))
    (container,) = server["containers"]
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    told = container["command"][container["command"].index("--metrics-port") + 1]
    assert opened["metrics"] == int(told)
    own, metrics = documents[-1]["spec"]["ingress"]
    assert "ports" not in own and own["from"] and metrics == {"ports": [{"port": int(told)}]}
