"""What a worker is told: where the servers are, and what is to be trained; from options, TF_CONFIG and files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from pswire.config.experiment import Experiment, load_experiment
from pswire.config.flags import WORKER, Flag
from pswire.config.sections import Section
from psworker.servers import Place, find_servers

# Seconds.
SERVER_TIMEOUT: Final = 60.0


class UsageError(ValueError):
    """Options that do not make a worker."""


class WorkerOptions(Section):
    """What one worker is told beside the experiment."""

    name: Annotated[str | None, Flag((WORKER,))] = None
    """this worker's name in logs. Default: w<task index>"""

    options: Annotated[list[str], Flag((WORKER,), "option", "KEY=VALUE")] = Field(default_factory=list)
    """an option of the job"""

    save: Annotated[Path | None, Flag((WORKER,), metavar="FILE")] = None
    """write the trained model here at the end: FILE.keras, or the folder of a SavedModel"""

    save_best: Annotated[Path | None, Flag((WORKER,), metavar="FILE")] = None
    """write the model of the best evaluation here, each time there is a better one (worker 0; job.monitor says which is
    better, job.evaluate_every how often): FILE.keras"""

    device: Annotated[str | None, Flag((WORKER,), about="auto | cpu | gpu:N. Default: auto.")] = None
    """`cpu`, `gpu:N`, or `auto`"""

    server_timeout: Annotated[
        float,
        Field(ge=0),
        Flag(
            (WORKER,),
            about=f"Seconds to keep trying a server that does not answer.  [default: {SERVER_TIMEOUT}]",
        ),
    ] = SERVER_TIMEOUT
    """seconds to keep trying a server that does not answer"""


def find_place(ps_hosts: str | None, task_index: int | None, tf_config: str | None) -> Place:
    """From options and TF_CONFIG. Raises UsageError, AddressError."""
    place = find_servers(ps_hosts, {"TF_CONFIG": tf_config or ""})
    if place is None:
        raise UsageError("expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither")
    return place if task_index is None else replace(place, task_index=task_index)


def read_experiment(
    config: Path | None, overrides: Sequence[str], place: Place, typed: Mapping[str, str]
) -> Experiment:
    """`typed`: as `load_experiment`. Raises ExperimentError, UsageError."""
    experiment = load_experiment(config, overrides, typed, {"cluster": {"servers": len(place.hosts)}})
    if experiment.job.module:
        return experiment
    if config is None:
        raise UsageError("expected --job package.module:name (or --config with a [job]), got neither")
    raise UsageError(f'{config} has no [job]: add module = "package.module:name", or give --job')


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
