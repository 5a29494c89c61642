"""The ps-worker command: its options, and what they mean together."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pswire.command.options import (
    CONTEXT,
    OptionError,
    chosen_keys,
    config_option,
    hosts_option,
    json_lines_option,
    key_options,
    log_format_option,
    overrides_option,
    parent_option,
    read_options,
    section_options,
    security_options,
    typed_options,
)
from pswire.command.process import die_with, exit_on_sigterm, keep_large_blocks
from pswire.command.task import chosen_task_index
from pswire.config.experiment import Experiment
from pswire.config.flags import WORKER
from pswire.exits import ExitCode, exit_codes_text
from pswire.logs.events import set_up
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityError, SecurityOptions, credentials_for
from psworker.connection import Connection, named_servers, task_index_in
from psworker.running import Reporter, WorkerOptions, fail, run

EPILOG = "\b\nExit codes:\n" + exit_codes_text()


class UsageError(ValueError):
    """The options are incomplete or contradict each other."""


def read_experiment(
    config: Path | None, overrides: Sequence[str], typed: Mapping[str, str], servers: int
) -> Experiment:
    """Load an experiment with a job. `typed`: as for `Experiment.load`. Raises ExperimentError, UsageError."""
    experiment = Experiment.load(config, overrides, typed, {"cluster": {"servers": max(servers, 1)}})
    if experiment.job.module:
        return experiment
    if config is None:
        raise UsageError("expected --job package.module:name (or --config with a [job]), got neither")
    raise UsageError(f'{config} has no [job]: add module = "package.module:name", or give --job')


def check_new(option: str, save: Path | None) -> None:
    """Check the destination of a model before hours of training. Raises UsageError."""
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


@click.command(epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="paramserver", prog_name="ps-worker")
@hosts_option
@click.option(
    "--task-index",
    metavar="N|auto",
    help="Which part of the data to take. auto: from TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX. "
    "Default: PS_TASK_INDEX, or TF_CONFIG's if that is in use, else the servers choose.",
)
@section_options(WORKER, WorkerOptions, only=("name", "options", "save", "save_best", "device"))
@config_option
@key_options(WORKER)
@overrides_option("Any key of an experiment file. Repeatable.")
@section_options(WORKER, WorkerOptions, only=("server_timeout",))
@log_format_option("standard error")
@security_options
@json_lines_option
@parent_option
def main(
    ps_hosts: str | None,
    task_index: str | None,
    config: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
    log_format: str,
    parent: int | None,
    security: SecurityOptions,
    **given: Any,
) -> None:
    """Compute gradients of a job's model and push them to the parameter servers.

    \b
    With servers at localhost:7070 and localhost:7071 (see ps-server --help):
      ps-worker --ps-hosts localhost:7070,localhost:7071 --job examples/digits.py:Digits

    The job is a small Python module of yours: a model, a dataset for worker i
    of n, and a loss (see psworker.Job). Keras computes it by TensorFlow, or by
    what KERAS_BACKEND names: jax, torch. A worker may join or be restarted
    at any time; it goes on with the first batch that it has not committed.
    """
    set_up("ps-worker", log_format)
    keep_large_blocks()
    exit_on_sigterm()
    if parent is not None:
        # SIGKILL, so that this worker sends no Leave, after which the others would go on without it.
        die_with(parent, signal.SIGKILL)
    try:
        options = read_options(WorkerOptions, given)
        check_new("--save", options.save)
        check_new("--save-best", options.save_best)
        index = chosen_task_index(task_index, "ps-worker")
        servers, _ = named_servers(ps_hosts, os.environ)
        keys = {name: value for name, value in given.items() if name not in WorkerOptions.model_fields}
        passed = [f"job.options.{option}" for option in options.options]
        given_keys = chosen_keys(WORKER, keys, overrides, passed)
        experiment = read_experiment(config, given_keys, typed_options(keys), len(servers))
        if options.save_best is not None and not experiment.job.evaluate_every:
            raise UsageError("--save-best: needs --evaluate-every, '1 epoch', say")
        if index is None:
            index = task_index_in(os.environ)
        own = options.name or ("" if index is None else f"w{index}")
        cluster = {name: getattr(experiment.cluster, name) for name in experiment.cluster.model_fields_set}
        connection = Connection.resolve(
            ps_hosts,
            name=options.name,
            task_index=index,
            wire_dtype=cluster.get("wire_dtype"),
            transport=cluster.get("transport"),
            replicas=cluster.get("replicas"),
            server_timeout=options.server_timeout,
            credentials=credentials_for(Role.WORKER, security, os.environ, experiment.security, name=own),
        )
        if connection.own is not None:
            raise UsageError(
                "expected --ps-hosts host:port,... (or PS_HOSTS, or TF_CONFIG), got none of them"
            )
    except IdentityError as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except (OptionError, SecurityError, ValueError) as error:
        raise fail(str(error), ExitCode.USAGE) from error
    sys.exit(int(run(experiment, connection, options, Reporter(as_json))))
