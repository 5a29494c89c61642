"""The ps-worker command."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from pswire.addresses import AddressError
from pswire.command.options import (
    CONTEXT,
    OptionError,
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
from pswire.command.task_index import chosen_task_index
from pswire.config.experiment import ExperimentError
from pswire.config.flags import WORKER
from pswire.config.toml import overrides_of
from pswire.exits import ExitCode, exit_codes_text
from pswire.logs.events import set_up
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityError, SecurityOptions, credentials_for
from pswire.security.tokens import TokenError
from psworker.command.place import UsageError, WorkerOptions, check_new, find_place, read_experiment
from psworker.command.running import Reporter, fail, run

EPILOG = "\b\nExit codes:\n" + exit_codes_text()


@click.command(epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="paramserver", prog_name="ps-worker")
@hosts_option
@click.option(
    "--task-index",
    metavar="N|auto",
    help="Which part of the data to take. auto: from TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or VC_TASK_INDEX. "
    "Default: TF_CONFIG's if that is in use, else the servers choose.",
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
      ps-worker --ps-hosts localhost:7070,localhost:7071 --job examples.digits:Digits

    The job is a small Python module of yours: a model, a dataset for worker i
    of n, and a loss (see psworker.Job). A worker may join or be restarted
    at any time; it goes on with the first batch that it has not committed.
    """
    set_up("ps-worker", log_format)
    keep_large_blocks()
    exit_on_sigterm()
    if parent is not None:
        # Without a Leave, behind which the others would go on: they end with this one.
        die_with(parent, signal.SIGKILL)
    try:
        options = read_options(WorkerOptions, given)
        check_new("--save", options.save)
        check_new("--save-best", options.save_best)
        index = chosen_task_index(task_index, "ps-worker")
        place = find_place(ps_hosts, index, os.environ.get("TF_CONFIG"))
        keys = {name: value for name, value in given.items() if name not in WorkerOptions.model_fields}
        said = (*overrides_of(keys), *(f"job.options.{option}" for option in options.options), *overrides)
        experiment = read_experiment(config, said, place, typed_options(keys))
        if options.save_best is not None and not experiment.job.evaluate_every:
            raise UsageError("--save-best: needs --evaluate-every, '1 epoch', say")
        own = options.name or ("" if index is None else f"w{index}")
        credentials = credentials_for(Role.WORKER, security, os.environ, experiment.security, name=own)
    except IdentityError as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except (UsageError, OptionError, AddressError, ExperimentError, SecurityError, TokenError) as error:
        raise fail(str(error), ExitCode.USAGE) from error
    sys.exit(int(run(experiment, place, options, Reporter(as_json), credentials)))
