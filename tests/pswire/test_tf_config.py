"""TF_CONFIG as TensorFlow and Kubeflow's training operator write it, and `--task-index auto`."""

import json
from typing import Any

import pytest

from pswire.addresses import Address, AddressError
from pswire.command.task import TaskIndex, cluster_from_tf_config, task_index_from
from tests.sentences import Recorder


def tf_config(task: dict[str, Any], **cluster: Any) -> str:
    return json.dumps({"cluster": {"ps": ["p:1", "p:2"], "worker": ["w:1", "w:2"]} | cluster, "task": task})


@pytest.mark.parametrize(
    ("task", "cluster", "expected"),
    [
        ({"type": "ps", "index": 1}, {}, ("ps", 1)),
        ({"type": "worker", "index": 1}, {}, ("worker", 1)),
        ({"type": "worker", "index": "1"}, {}, ("worker", 1)),
        ({"type": "worker", "index": 1}, {"chief": ["c:1"]}, ("worker", 2)),
        ({"type": "chief", "index": 0}, {"chief": ["c:1"]}, ("worker", 0)),
        ({"type": "chief"}, {"chief": ["c:1"]}, ("worker", 0)),
        ({"type": "chief", "index": 0}, {"chief": ["c:1"], "worker": []}, ("worker", 0)),
        ({"type": "master", "index": 0}, {"master": ["c:1"]}, ("worker", 0)),
        ({"type": "worker", "index": 0}, {"master": ["c:1"]}, ("worker", 1)),
        ({"type": "ps", "index": 0}, {"evaluator": ["e:1"]}, ("ps", 0)),
    ],
)
def test_tf_config(task: dict[str, Any], cluster: dict[str, Any], expected: tuple[str, int]) -> None:
    found = cluster_from_tf_config(tf_config(task, **cluster))
    assert (found.task_type, found.task_index) == expected
    assert found.ps == (Address("p", 1), Address("p", 2))
    assert found.workers == len({**{"worker": [1, 2]}, **cluster}["worker"]) + len(
        cluster.keys() & {"chief", "master"}
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG: expected JSON, got '{'"),
        ("[]", "TF_CONFIG: cluster: expected an object, got null"),
        ('{"cluster": 3}', "TF_CONFIG: cluster: expected an object, got 3"),
        (tf_config({}), "TF_CONFIG: task.type: expected ps, worker or chief, got null"),
        (tf_config({"type": "evaluator", "index": 0}), 'task.type "evaluator" is not supported'),
        (
            tf_config({"type": "ps", "index": 0}, wroker=[]),
            'cluster.wroker is unknown; did you mean "worker"?',
        ),
        (tf_config({"type": "ps", "index": 0}, ps=[]), "cluster.ps is missing"),
        (tf_config({"type": "ps", "index": 0}, worker=[]), "cluster.worker is missing"),
        (
            tf_config({"type": "ps", "index": 0}, ps="p:1"),
            'cluster.ps: expected a list of host:port, got "p:1"',
        ),
        (tf_config({"type": "ps", "index": 0}, ps=["p"]), "cluster.ps: expected host:port, got 'p'"),
        (
            tf_config({"type": "ps", "index": 0}, chief=["a:1", "b:1"]),
            "cluster.chief: expected one address, got 2",
        ),
        (
            tf_config({"type": "ps", "index": 2}),
            "task.index: expected a number below 2 (cluster.ps has 2), got 2",
        ),
        (tf_config({"type": "ps", "index": -1}), "task.index: expected a number >= 0, got -1"),
        (tf_config({"type": "ps", "index": True}), "got true"),
        (tf_config({"type": "ps"}), "task.index: expected a number >= 0, got null"),
        (
            tf_config({"type": "chief", "index": 0}),
            "task.index: expected a number below 0 (cluster.chief has 0)",
        ),
        ("[" * 100000, "TF_CONFIG: expected JSON"),
    ],
)
def test_wrong_tf_config_names_its_key(text: str, words: str) -> None:
    with pytest.raises(AddressError) as caught:
        cluster_from_tf_config(text)
    assert words in str(caught.value) and str(caught.value).startswith("TF_CONFIG: ")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_PROCID": "3"}, TaskIndex(3, "SLURM_PROCID")),
        ({"JOB_COMPLETION_INDEX": "0", "VC_TASK_INDEX": "5"}, TaskIndex(0, "JOB_COMPLETION_INDEX")),
        ({"VC_TASK_INDEX": "5"}, TaskIndex(5, "VC_TASK_INDEX")),
        (
            {"TF_CONFIG": tf_config({"type": "worker", "index": 1}, chief=["c:1"]), "SLURM_PROCID": "9"},
            TaskIndex(2, "TF_CONFIG"),
        ),
    ],
)
def test_the_first_variable_that_is_there_says_the_task(
    environment: dict[str, str], expected: TaskIndex
) -> None:
    assert task_index_from(environment) == expected


def test_no_variable_says_the_task(sentences: Recorder) -> None:
    with pytest.raises(AddressError) as refused:
        task_index_from({"TF_CONFIG": ""})
    sentences.check(refused)
    with pytest.raises(AddressError) as refused:
        task_index_from({"SLURM_PROCID": "-1", "VC_TASK_INDEX": "1"})
    sentences.check(refused)
