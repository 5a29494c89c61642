"""The ps-server command."""

import errno
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click

from psserver import policies
from psserver.checkpoint import CheckpointError, UnwritableError
from psserver.checkpoint.resumption import AUTO
from psserver.checkpoint.rewind import RewindError
from psserver.optimizers import OptimizerError
from psserver.optimizers import names as optimizer_names
from psserver.policies import PolicyError
from psserver.service.guard.limits import raise_descriptors
from psserver.service.job.log_file import LogError
from psserver.service.job.run_log import FolderError
from psserver.service.life.listeners import BindError
from psserver.service.life.servers import Servers
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.life.successor import newest, numbered
from psserver.service.net.loop import freeze_gc
from psserver.service.server import ResourcesError
from psserver.service.store.resume_point import succeeded
from psserver.settings import Options, SettingsError, UntrustedError, chosen_options, resolve
from pswire.addresses import AddressError
from pswire.command.options import (
    CONTEXT,
    OptionError,
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
from pswire.command.process import die_with, keep_large_blocks
from pswire.config.experiment import ExperimentError
from pswire.config.flags import SERVER
from pswire.exits import ExitCode, exit_codes_text
from pswire.logs.events import event, last_words, set_up
from pswire.transport.segments import SegmentError


def announce_json(event: str, fields: Mapping[str, Any]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def announce_text(event: str, fields: Mapping[str, Any]) -> None:
    match event:
        case "ready":
            print(f"ps-server {fields['task_index']} is ready at {fields['address']}", flush=True)
            if "out" in fields:
                print(f"run folder: {fields['out']}", flush=True)
            if "metrics" in fields:
                scheme = "https" if fields["security"] in ("tls", "tokens") else "http"
                print(f"metrics: {scheme}://{fields['metrics']}/metrics", flush=True)
        case "plan":
            print(fields["text"], flush=True)
        case "stopped":
            print(f"stopped: {fields['reason']}", flush=True)
            if "out" in fields:
                # Some jobs end without weights, for example after the loss of a server.
                trained = (Path(fields["out"]) / "weights.safetensors").exists()
                kept = "log, summary and weights" if trained else "log and summary, no weights"
                print(f"{kept}: {fields['out']}", flush=True)


log = logging.getLogger("ps-server")

EPILOG = "\b\nExit codes:\n" + exit_codes_text()

# Errors in the options, the experiment file or this machine.
WRONG = (SettingsError, OptionError, ExperimentError, AddressError, PolicyError, OptimizerError, SegmentError)


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
def main(
    as_json: bool,
    log_format: str,
    parent: int | None,
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
    no other process can give a server orders, and a lost server may come back
    at another address.
    """
    set_up("ps-server", log_format)
    keep_large_blocks()
    raise_descriptors()
    try:
        options = chosen_options(given, overrides, task_index)
        settings = resolved(options)
        if settings.task_index == 0 and settings.out is None and not options.no_out:
            settings = replace(settings, out=default_folder(settings.terms.job))
        announce = announce_json if as_json else announce_text
        if nothing_to_do(settings, options.resume, announce):
            sys.exit(int(ExitCode.OK))
        servers = Servers(settings, lambda: resolved(options), announce)
    except UntrustedError as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except WRONG as error:
        raise fail(str(error), ExitCode.USAGE) from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(interrupt, servers))
    if parent is not None:
        die_with(parent)
    freeze_gc()
    sys.exit(int(serve(servers)))


def nothing_to_do(settings: ServerSettings, resume: str | None, announce: Announce) -> bool:
    """Return True, and say so, if a supervisor restarted a server whose job has succeeded; change nothing."""
    if resume != AUTO or settings.out is None or settings.process.stay:
        return False
    out = numbered(settings.out, newest(settings.out))
    ended = succeeded(out)
    if ended is not None:
        reason = f"the job in {out} has succeeded before ({ended}); --resume latest trains on, and a new "
        reason += "run needs another folder (--out)"
        announce("stopped", {"reason": reason, "exit_code": int(ExitCode.OK), "out": str(out)})
    return ended is not None


def interrupt(servers: Servers, number: int, frame: FrameType | None) -> None:
    """Handle a signal. Ctrl-C after another signal ends the process at once.

    It does not wait for threads that a disk blocks. What is not written by then is lost, as after a kill.
    """
    try:
        servers.interrupt(number, frame)
    except SystemExit:
        os._exit(128 + number)


def resolved(options: Options) -> ServerSettings:
    """Resolve the settings for this process, which only serves: garbage collection skips what stays for good."""
    settings = resolve(options, os.environ.get("TF_CONFIG"))
    return replace(settings, host=replace(settings.host, loaded=freeze_gc))


def serve(servers: Servers) -> ExitCode:
    """Serve until no job follows. An error ends the process with one clear message and its exit code."""
    try:
        return servers.run()
    except BindError as error:
        raise fail(str(error), ExitCode.ADDRESS_IN_USE) from error
    except ResourcesError as error:
        raise fail(str(error), ExitCode.RESOURCES) from error
    except UntrustedError as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except FolderError as error:
        raise fail(f"--out {error}", ExitCode.USAGE) from error
    except (UnwritableError, LogError) as error:
        raise fail(str(error), ExitCode.STORAGE) from error
    except (*WRONG, CheckpointError, RewindError) as error:
        raise fail(str(error), ExitCode.USAGE) from error


def default_folder(job: str) -> Path | None:
    """Return a new folder runs/TIME-JOB; None, with a warning, if none can be made."""
    runs = Path("runs").resolve()
    try:
        runs.mkdir(exist_ok=True)
        if not os.access(runs, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        log.warning(
            "the trained model will not be kept: no folder can be made in %s (%s); name one with --out",
            *(runs, error.strerror),
            extra=event("nothing_kept"),
        )
        return None
    return runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{job[:4]}"


def fail(message: str, code: ExitCode) -> SystemExit:
    last_words("ps-server", message, int(code))
    return SystemExit(int(code))
