"""The place of a process in its cluster: `--task-index`, and TF_CONFIG and other variables that schedulers set.

Of TF_CONFIG, TensorFlow's own form is supported, and that of Kubeflow's training operator: `master` for `chief`, and no
evaluator in the cluster.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pswire.addresses import Address, AddressError, parse_address, refuse_duplicates
from pswire.logs.events import event
from pswire.nearest import did_you_mean

AUTO = "auto"
# In this order: Slurm steps, Kubernetes Indexed Jobs, Volcano tasks.
VARIABLES = ("SLURM_PROCID", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")
KINDS = ("ps", "worker", "chief", "master", "evaluator")

Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class TfCluster:
    """The contents of TF_CONFIG; a chief, if any, is the first of `workers`.

    `workers`: their number. `ps`: in task order.
    """

    ps: tuple[Address, ...]
    workers: int
    task_type: Literal["ps", "worker"]
    task_index: int


def cluster_from_tf_config(text: str) -> TfCluster:
    """Read the value of the TF_CONFIG environment variable.

    A chief becomes worker 0, and the other workers move up by one. An evaluator in the cluster is left out; as this
    process's task it is refused, because the servers choose a worker to evaluate. Raises AddressError, naming the wrong
    key.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AddressError(f"TF_CONFIG: expected JSON, got {text[:80]!r} ({error})") from error
    cluster = _table(config, "cluster")
    for kind in cluster:
        if kind not in KINDS:
            raise AddressError(f"TF_CONFIG: cluster.{kind} is unknown{did_you_mean(kind, KINDS)}")
    task = _table(config, "task")
    ps, chief, master, workers = (_addresses(cluster, kind) for kind in ("ps", "chief", "master", "worker"))
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


def _table(config: object, key: str) -> Table:
    value = config.get(key) if isinstance(config, dict) else None
    if not isinstance(value, dict):
        raise AddressError(f"TF_CONFIG: {key}: expected an object, got {json.dumps(value)[:80]}")
    return value


def _addresses(cluster: Table, kind: str) -> tuple[Address, ...]:
    entries = cluster.get(kind, [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        got = json.dumps(entries)[:80]
        raise AddressError(f"TF_CONFIG: cluster.{kind}: expected a list of host:port, got {got}")
    try:
        addresses = tuple(parse_address(entry) for entry in entries)
        refuse_duplicates(addresses)
    except AddressError as error:
        raise AddressError(f"TF_CONFIG: cluster.{kind}: {error}") from error
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
    """Return the task's index; a chief's defaults to 0."""
    index = task.get("index", 0 if kind == "chief" else None)
    # TensorFlow also accepts "0" for 0.
    number = int(index) if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index) else index
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise AddressError(f"TF_CONFIG: task.index: expected a number >= 0, got {json.dumps(index)}")
    return number


@dataclass(frozen=True, slots=True)
class TaskIndex:
    """A task index, and the environment variable it came from."""

    index: int
    source: str


def task_index_from(environment: Mapping[str, str]) -> TaskIndex:
    """Read the index from TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX, whichever comes first.

    Raises AddressError if none is set, or if the first one set has no index >= 0.
    """
    tf_config = environment.get("TF_CONFIG")
    if tf_config:
        return TaskIndex(cluster_from_tf_config(tf_config).task_index, "TF_CONFIG")
    for name in VARIABLES:
        text = environment.get(name)
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,9}", text):
                raise AddressError(f"--task-index auto: {name}: expected a number >= 0, got {text!r}")
            return TaskIndex(int(text), name)
    names = ", ".join(("TF_CONFIG", *VARIABLES[:-1]))
    raise AddressError(
        f"--task-index auto: expected one of {names} or {VARIABLES[-1]} in the environment, got none; give a number"
    )


def chosen_task_index(text: str | None, command: str) -> int | None:
    """Return the value of `--task-index`. For "auto", `command` logs where it was found. Raises AddressError."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text != AUTO:
        raise AddressError(f'--task-index: expected a number >= 0 or "{AUTO}", got {text!r}')
    found = task_index_from(os.environ)
    extra = event("task_index", task_index=found.index, source=found.source)
    logging.getLogger(command).info("this is task %d, from %s", found.index, found.source, extra=extra)
    return found.index
