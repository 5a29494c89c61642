"""`--task-index`: which task of its kind this process is; "auto": as whatever started it says in the environment."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pswire.addresses import AddressError
from pswire.command.tf_config import cluster_from_tf_config
from pswire.logs.events import event

AUTO = "auto"
# In this order: of Slurm's steps, of Kubernetes' Indexed Jobs, of Volcano's tasks.
VARIABLES = ("SLURM_PROCID", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")


@dataclass(frozen=True, slots=True)
class TaskIndex:
    """`source`: the variable that said it."""

    index: int
    source: str


def task_index_from(environment: Mapping[str, str]) -> TaskIndex:
    """From TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX: the first that is there.

    Raises AddressError when none is, or the first that is there has no index from 0 on.
    """
    tf_config = environment.get("TF_CONFIG")
    if tf_config:
        return TaskIndex(cluster_from_tf_config(tf_config).task_index, "TF_CONFIG")
    for name in VARIABLES:
        text = environment.get(name)
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,9}", text):
                raise AddressError(f"--task-index auto: {name}: expected a number from 0 on, got {text!r}")
            return TaskIndex(int(text), name)
    names = ", ".join(("TF_CONFIG", *VARIABLES[:-1]))
    raise AddressError(
        f"--task-index auto: expected one of {names} or {VARIABLES[-1]} in the environment, got none; give a number"
    )


def chosen_task_index(text: str | None, command: str) -> int | None:
    """What `--task-index` says; for "auto" the log of `command` says where it was found. Raises AddressError."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text != AUTO:
        raise AddressError(f'--task-index: expected a number from 0 on or "{AUTO}", got {text!r}')
    found = task_index_from(os.environ)
    told = event("task_index", task_index=found.index, source=found.source)
    logging.getLogger(command).info("this is task %d, as %s says", found.index, found.source, extra=told)
    return found.index
