"""Where the servers are, and what is to be trained: from options, TF_CONFIG and experiment files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pswire.addresses import Address, parse_hosts
from pswire.command.tf_config import cluster_from_tf_config
from pswire.config.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from pswire.config.overrides import OverrideError, apply_overrides


class UsageError(ValueError):
    """Options that do not make a worker."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers are and which worker this is."""

    hosts: tuple[Address, ...]
    task_index: int | None


def find_place(ps_hosts: str | None, task_index: int | None, tf_config: str | None) -> Place:
    """From options and TF_CONFIG. Raises UsageError, AddressError."""
    if ps_hosts is not None:
        return Place(parse_hosts(ps_hosts), task_index)
    if not tf_config:
        raise UsageError("expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither")
    cluster = cluster_from_tf_config(tf_config)
    if cluster.task_type != "worker":
        raise UsageError(
            f"TF_CONFIG: task.type: expected worker or chief for a ps-worker, got {cluster.task_type}"
        )
    return Place(cluster.ps, cluster.task_index if task_index is None else task_index)


def read_experiment(config: Path | None, overrides: Sequence[str], place: Place) -> Experiment:
    """Raises ExperimentError, UsageError."""
    if config is not None:
        experiment = load_experiment(config, overrides)
    else:
        document: dict[str, Any] = {"cluster": {"servers": len(place.hosts)}}
        try:
            apply_overrides(document, overrides)
        except OverrideError as error:
            raise ExperimentError(str(error)) from error
        if "job" not in document:
            raise UsageError("expected --job package.module:name (or --config with a [job]), got neither")
        experiment = parse_experiment(document, "options")
    if not experiment.job.module:
        raise UsageError(f'{config} has no [job]: add module = "package.module:name", or give --job')
    return experiment


def check_new(option: str, save: Path | None) -> None:
    """Before hours of training. Raises UsageError."""
    if save is None:
        return
    if save.exists():
        raise UsageError(f"{option} {save}: is there already; name another file")
    if save.suffix not in (".keras",) + (("",) if option == "--save" else ()):
        raise UsageError(
            f"{option} {save}: expected a name that ends in .keras, or a folder's without an ending"
        )
    if not os.access(save.absolute().parent, os.W_OK):
        raise UsageError(f"{option} {save}: {save.absolute().parent} is no folder that can be written to")
