"""Manifests before those who know: Kubernetes' schemas, and the Python model of JobSet.

They are the extra `kubernetes-test`, which .ci/run installs beside all others; elsewhere these tests are skipped.
"""

from typing import Any

import pytest

from tests.manifests.checking import schema_problems
from tests.manifests.made import KINDS, manifest

PLACE = {"servers": {"cpus": 2, "memory": "4GiB", "spread": True}, "workers": {"cpus": 1, "gpus": 1}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "secret": {"tls": "digits-tls", "claim": "runs", "namespace": "team"},
    "placed": {
        "sections": {"cluster": {"place": PLACE}, "run": {"checkpoint_every": "60s"}},
        "tls": "digits-tls",
        "claim": "runs",
    },
    "script": {"sections": {"job": {"script": "train.py", "arguments": ["--epochs", "3"]}}},
}
SIZES = [(1, 1), (1, 64), (3, 7), (8, 1), (8, 64)]


@pytest.fixture
def schemas() -> None:
    pytest.importorskip("kubernetes_validate", reason="no schemas (scripts/install kubernetes-test)")


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_own_schemas_take_them(kind: str, case: str) -> None:
    for servers, workers in SIZES:
        assert schema_problems(manifest(kind, servers, workers, **CASES[case])) == []


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_find_a_misspelt_key(kind: str) -> None:
    documents = manifest(kind)
    documents[0]["metadata"]["lables"] = {}
    pod = {"jobs": lambda: documents[2]["spec"]["template"]["spec"]}
    pod["jobset"] = lambda: documents[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod[kind]()["restartPolcy"] = "Never"
    found = schema_problems(documents)
    assert found is not None and len(found) == 2
    assert "lables" in found[0] and "restartPolcy" in found[1]


def kept(made: Any, said: Any, path: str = "") -> list[str]:
    """Paths of what a model has not taken up: it passes over keys that it does not know."""
    if isinstance(said, dict):
        if not isinstance(made, dict):
            return [path]
        return [each for key in said for each in kept(made.get(key), said[key], f"{path}.{key}")]
    if isinstance(said, list):
        pairs = zip(made or [], said, strict=False)
        lost = [path] if len(made or []) != len(said) else []
        return lost + [each for n, (m, s) in enumerate(pairs) for each in kept(m, s, f"{path}[{n}]")]
    return [] if made == said else [path]


@pytest.mark.parametrize("case", CASES)
def test_the_model_of_a_jobset_takes_it_up_whole(case: str) -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="no models of other kinds (scripts/install kubernetes-test)"
    )
    for servers, workers in SIZES:
        document = manifest("jobset", servers, workers, **CASES[case])[1]
        assert kept(models.JobsetV1alpha2JobSet.from_dict(document).to_dict(), document) == []


def test_what_a_model_passes_over_is_found() -> None:
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="no models of other kinds (scripts/install kubernetes-test)"
    )
    document = manifest("jobset")[1]
    document["spec"]["network"]["subdomian"] = "x"
    found = models.JobsetV1alpha2JobSet.from_dict(document).to_dict()
    assert kept(found, document) == [".spec.network.subdomian"]
