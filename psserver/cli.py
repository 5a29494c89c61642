"""The ps-server command."""

import sys
from typing import Any

import click

from psserver import policies
from psserver.optimizers import names as optimizer_names
from psserver.options import Options
from pswire.command.options import (
    CONTEXT,
    config_option,
    hosts_option,
    insecure_option,
    json_lines_option,
    key_options,
    log_format_option,
    overrides_option,
    parent_option,
    section_options,
    security_options,
)
from pswire.config.flags import SERVER
from pswire.exits import exit_codes_text
from pswire.logs.events import set_up

EPILOG = "\b\nExit codes:\n" + exit_codes_text()


@click.command(epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="paramserver", prog_name="ps-server")
@hosts_option
@click.option(
    "--task-index",
    metavar="N|auto",
    help="Index of this server; server 0 is also the coordinator. auto: from TF_CONFIG, SLURM_PROCID, "
    "JOB_COMPLETION_INDEX or VC_TASK_INDEX.",
)
@section_options(SERVER, Options)
@insecure_option
@security_options
@config_option
@key_options(
    SERVER,
    names={"policy.name": policies.names, "optimizer.name": optimizer_names},
    more={
        "policy.name": f"Built in: {' | '.join(policies.names())}. --set policy.KNOB=VALUE sets a knob.",
        "optimizer.name": f"Built in: {' | '.join(optimizer_names())}. --set optimizer.KNOB=VALUE sets a knob.",
    },
)
@overrides_option("Any key of an experiment file, e.g. policy.max_staleness=2. Repeatable.")
@log_format_option("standard error")
@json_lines_option
@parent_option
@click.option("--spare", is_flag=True, hidden=True, help="Another server goes on: die at once with --parent.")
def main(
    as_json: bool,
    log_format: str,
    parent: int | None,
    spare: bool,
    task_index: str | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Hold one part of a model and apply what the workers push.

    \b
    On one machine, with two servers:
      ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 0 --workers 2
      ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 1
    Then start workers with the same --ps-hosts (see ps-worker --help).

    Server 0 decides the fate of every gradient; policy, optimizer and the other
    training options matter there only. The servers exit by themselves when all
    workers are done. Watch them with: ps-lab status HOST:PORT

    With PS_JOB_SECRET in the environment, the same for all servers of the job,
    no other process can give a server orders. Without TLS, commands that change
    the job need it too: they find it in the run folder, or in PS_JOB_SECRET.
    """
    # Loaded here, so that help is answered at once.
    from psserver.serving import run

    set_up("ps-server", log_format)
    sys.exit(int(run(given, overrides, task_index, as_json=as_json, parent=parent, spare=spare)))
