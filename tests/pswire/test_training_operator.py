"""TF_CONFIG as Kubeflow's training operator writes it for every task of a TFJob: each finds its place, or is told in
one sentence why it has none.

`written` does what `genClusterSpec` does in pkg/controller.v1/tensorflow/tensorflow.go.
"""

import json
from itertools import product

import pytest

from pswire.addresses import AddressError
from pswire.command.task import cluster_from_tf_config
from tests.promises import promise
from tests.sentences import Recorder

REPLICAS = ("ps", "worker", "chief", "master", "evaluator")
SIZES = [
    {"ps": ps, "worker": workers, **first, **evaluator}
    for ps, workers, first, evaluator in product(
        (1, 3), (0, 1, 4), ({}, {"chief": 1}, {"master": 1}), ({}, {"evaluator": 1})
    )
    if workers or first
]


def addresses(kind: str, count: int) -> list[str]:
    return [f"digits-{kind}-{index}.team.svc:2222" for index in range(count)]


def written(replicas: dict[str, int], kind: str, index: int) -> str:
    cluster = {
        each: addresses(each, count) for each, count in replicas.items() if each != "evaluator" and count
    }
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


def tasks(replicas: dict[str, int]) -> list[tuple[str, int]]:
    return [(kind, index) for kind in REPLICAS for index in range(replicas.get(kind, 0))]


@promise("Every task of a TF_CONFIG finds its place.")
@pytest.mark.parametrize("replicas", SIZES, ids=str)
def test_every_task_of_a_dense_cluster_finds_its_place(replicas: dict[str, int], sentences: Recorder) -> None:
    first = replicas.get("chief", 0) + replicas.get("master", 0)
    ranks = []
    for kind, index in tasks(replicas):
        text = written(replicas, kind, index)
        if kind == "evaluator":
            with pytest.raises(AddressError) as refused:
                cluster_from_tf_config(text)
            sentences.check(refused)
            continue
        found = cluster_from_tf_config(text)
        assert [str(each) for each in found.ps] == addresses("ps", replicas["ps"])
        assert found.workers == first + replicas["worker"]
        if kind == "ps":
            assert (found.task_type, found.task_index) == ("ps", index)
        else:
            assert found.task_type == "worker"
            ranks.append(found.task_index)
    # Every part of the data is somebody's, once; the chief's is the first.
    assert sorted(ranks) == list(range(first + replicas["worker"]))
