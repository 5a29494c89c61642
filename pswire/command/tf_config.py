"""TF_CONFIG, in which schedulers tell a process of its cluster and its place there.

TensorFlow's own form, and what Kubeflow's training operator writes: `master` for `chief`, no evaluator in the
cluster, and for a job with `enableDynamicWorker` a `sparseCluster`, which names every ps and, of the workers, only the
process itself; a ps finds only itself there (`pkg/controller.v1/tensorflow/tensorflow.go` of training-operator v1).
"""

import json
import re
from dataclasses import dataclass
from typing import Literal

from pswire.addresses import Address, AddressError, parse_address, refuse_duplicates
from pswire.nearest import did_you_mean

KINDS = ("ps", "worker", "chief", "master", "evaluator")

Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class TfCluster:
    """What TF_CONFIG says, with a chief, if any, as the first of `workers`.

    `workers`: None where it does not say how many there are. `ps`: in task order.
    """

    ps: tuple[Address, ...]
    workers: int | None
    task_type: Literal["ps", "worker"]
    task_index: int


def cluster_from_tf_config(text: str) -> TfCluster:
    """Read the value of the TF_CONFIG environment variable.

    A chief is a worker here: it becomes worker 0 and the others move up by
    one. An evaluator of the cluster is left out, and as this process's task it
    is refused: the servers choose a worker to evaluate.
    Raises AddressError, naming the key that is wrong.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AddressError(f"TF_CONFIG: expected JSON, got {text[:80]!r} ({error})") from error
    sparse = isinstance(config, dict) and "sparseCluster" in config and "cluster" not in config
    key = "sparseCluster" if sparse else "cluster"
    cluster = _table(config, key)
    for kind in cluster:
        if kind not in KINDS:
            raise AddressError(f"TF_CONFIG: {key}.{kind} is unknown{did_you_mean(kind, KINDS)}")
    task = _table(config, "task")
    return _sparse(cluster, task) if sparse else _dense(cluster, task)


def _dense(cluster: Table, task: Table) -> TfCluster:
    ps, chief, master, workers = (
        _addresses("cluster", cluster, kind) for kind in ("ps", "chief", "master", "worker")
    )
    chief += master
    for kind, found in (("ps", ps), ("worker", chief + workers)):
        if not found:
            raise AddressError(f"TF_CONFIG: cluster.{kind} is missing; expected a list of host:port")
    if len(chief) > 1:
        raise AddressError(f"TF_CONFIG: cluster.chief: expected one address, got {len(chief)}")
    kind = _kind(task)
    counts = {"ps": len(ps), "chief": len(chief), "worker": len(workers)}
    index = _index(task, kind)
    if index >= counts[kind]:
        expected = f"a number below {counts[kind]} (cluster.{kind} has {counts[kind]})"
        raise AddressError(f"TF_CONFIG: task.index: expected {expected}, got {index}")
    if kind == "ps":
        return TfCluster(ps, len(chief + workers), "ps", index)
    first = len(chief) if kind == "worker" else 0
    return TfCluster(ps, len(chief + workers), "worker", first + index)


def _sparse(cluster: Table, task: Table) -> TfCluster:
    """Nobody is told how many workers there are; they come and go."""
    kind, ps = _kind(task), _addresses("sparseCluster", cluster, "ps")
    index = _index(task, kind)
    if not ps:
        raise AddressError("TF_CONFIG: sparseCluster.ps is missing; expected a list of host:port")
    if kind == "ps" and (index or len(ps) > 1):
        raise AddressError(
            f"TF_CONFIG: sparseCluster names {len(ps)} ps to ps {index}: a server must know all of them; give "
            "--ps-hosts and --task-index, or switch enableDynamicWorker off"
        )
    return TfCluster(ps, None, "ps" if kind == "ps" else "worker", index)


def _table(config: object, key: str) -> Table:
    value = config.get(key) if isinstance(config, dict) else None
    if not isinstance(value, dict):
        raise AddressError(f"TF_CONFIG: {key}: expected an object, got {json.dumps(value)[:80]}")
    return value


def _addresses(key: str, cluster: Table, kind: str) -> tuple[Address, ...]:
    entries = cluster.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        got = json.dumps(entries)[:80]
        raise AddressError(f"TF_CONFIG: {key}.{kind}: expected a list of host:port, got {got}")
    try:
        addresses = tuple(parse_address(entry) for entry in entries)
        refuse_duplicates(addresses)
    except AddressError as error:
        raise AddressError(f"TF_CONFIG: {key}.{kind}: {error}") from error
    return addresses


def _kind(task: Table) -> Literal["ps", "worker", "chief"]:
    match task.get("type"):
        case "ps":
            return "ps"
        case "worker":
            return "worker"
        case "chief" | "master":
            return "chief"
        case "evaluator":
            raise AddressError(
                'TF_CONFIG: task.type "evaluator" is not supported; a worker evaluates the model'
            )
        case other:
            raise AddressError(f"TF_CONFIG: task.type: expected ps, worker or chief, got {json.dumps(other)}")


def _index(task: Table, kind: str) -> int:
    """Of a chief it need not be said."""
    index = task.get("index", 0 if kind == "chief" else None)
    # TensorFlow itself takes "0" for 0.
    number = int(index) if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index) else index
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise AddressError(f"TF_CONFIG: task.index: expected a number from 0 on, got {json.dumps(index)}")
    return number
