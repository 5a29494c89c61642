"""Run one server from its options to its exit code."""

import errno
import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from psserver.checkpoint import CheckpointError, UnwritableError
from psserver.checkpoint.resumption import AUTO
from psserver.checkpoint.rewind import RewindError
from psserver.optimizers import OptimizerError
from psserver.options import Options
from psserver.policies import PolicyError
from psserver.service.guard.machine import raise_descriptors
from psserver.service.job.log_file import LogError
from psserver.service.job.next_job import newest, numbered
from psserver.service.job.run_log import SUMMARY, WEIGHTS, FolderError
from psserver.service.life.servers import Servers
from psserver.service.life.settings import Announce, ServerSettings
from psserver.service.runtime import BindError, freeze_gc
from psserver.service.server import ResourcesError
from psserver.service.store.resume_point import succeeded
from psserver.settings import SettingsError, UntrustedError, chosen_options, decided_by_server_0, resolve
from pswire.addresses import AddressError
from pswire.command.options import OptionError
from pswire.command.process import die_with, keep_large_blocks
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode
from pswire.logs.events import event, last_words
from pswire.transport.segments import SegmentError

log = logging.getLogger("ps-server")

# Errors in the options, the experiment file or this machine.
WRONG = (SettingsError, OptionError, ExperimentError, AddressError, PolicyError, OptimizerError, SegmentError)


def announce_json(event: str, fields: Mapping[str, Any]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def announce_text(event: str, fields: Mapping[str, Any]) -> None:
    match event:
        case "ready":
            print(f"ps-server {fields['task_index']} is ready at {fields['address']}", flush=True)
            if "out" in fields:
                print(f"run folder: {fields['out']}", flush=True)
            if "metrics" in fields:
                scheme = "https" if fields["security"] == "tls" else "http"
                print(f"metrics: {scheme}://{fields['metrics']}/metrics", flush=True)
        case "plan":
            print(fields["text"], flush=True)
        case "stopped":
            print(f"stopped: {fields['reason']}", flush=True)
            if fields.get("kept_back"):
                print(f"warning: {fields['kept_back']}", flush=True)
            if "out" in fields:
                print(f"{_kept(Path(fields['out']))}: {fields['out']}", flush=True)


def _kept(folder: Path) -> str:
    """Return what a run left. Weights lack after the loss of a server, for example, all but the log on a full disk."""
    there = {name: (folder / file).exists() for name, file in (("summary", SUMMARY), ("weights", WEIGHTS))}
    kept = ["log", *(name for name, exists in there.items() if exists)]
    missing = "".join(f", no {name}" for name, exists in there.items() if not exists)
    *first, last = kept
    return f"{', '.join(first)} and {last}{missing}" if first else f"{last}{missing}"


def run(
    given: Mapping[str, Any],
    overrides: tuple[str, ...],
    task_index: str | None,
    *,
    as_json: bool,
    parent: int | None,
    spare: bool = False,
) -> ExitCode:
    """Serve as the options say, until no job follows; return the exit code.

    `parent`: the process with which this one ends; `spare`: at once, without ending the job. Raises SystemExit for what
    is wrong, behind one clear message.
    """
    keep_large_blocks()
    raise_descriptors()
    try:
        options = chosen_options(given, overrides, task_index)
        settings = resolved(options)
        if settings.task_index and settings.replicas == 1 and (unused := decided_by_server_0(options)):
            log.info(
                "server 0 decides for all servers, and this one does not use: %s",
                ", ".join(unused),
                extra=event("options_unused", options=unused),
            )
        if settings.task_index == 0 and settings.out is None and not options.no_out:
            settings = replace(settings, out=default_folder(settings.terms.job))
        announce = announce_json if as_json else announce_text
        if nothing_to_do(settings, options.resume, announce):
            return ExitCode.OK
        servers = Servers(settings, lambda: resolved(options), announce)
    except UntrustedError as error:
        raise fail(str(error), ExitCode.UNTRUSTED) from error
    except WRONG as error:
        raise fail(str(error), ExitCode.USAGE) from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(interrupt, servers))
    if parent is not None:
        die_with(parent, signal.SIGKILL if spare else signal.SIGTERM)
    freeze_gc()
    code = serve(servers)
    # The end of the interpreter takes a moment, and a signal in it would take the place of the exit code.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def nothing_to_do(settings: ServerSettings, resume: str | None, announce: Announce) -> bool:
    """Return True, and say so, if a supervisor restarted a server whose job has succeeded; change nothing."""
    if resume != AUTO or settings.out is None:
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
    except LogError as error:
        raise fail(str(error), error.code) from error
    except UnwritableError as error:
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
