"""The ps-server command."""

import errno
import logging
import os
import signal
import sys
import time
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
from psserver.command.announcements import announce_json, announce_text
from psserver.command.choices import chosen_options
from psserver.optimizers import OptimizerError
from psserver.optimizers import names as optimizer_names
from psserver.policies import PolicyError
from psserver.service.job.agreement import FROM_JOB
from psserver.service.limits.workers import raise_descriptors
from psserver.service.log.json_lines import LogError
from psserver.service.log.run_log import FolderError
from psserver.service.loop.garbage import spare_what_is_here
from psserver.service.saving.resume_point import succeeded
from psserver.service.server import ResourcesError
from psserver.service.serving.making import Announce
from psserver.service.serving.settings import ServerSettings
from psserver.service.succession.servers import Servers
from psserver.service.transport.listening import BindError
from psserver.settings import Options, SettingsError, UntrustedError, resolve
from pswire.addresses import AddressError
from pswire.command.options import (
    CONTEXT,
    completed_by,
    config_option,
    json_lines_option,
    log_format_option,
    number_option,
    overrides_option,
    parent_option,
)
from pswire.command.process import die_with, keep_large_blocks
from pswire.config.experiment import ExperimentError
from pswire.exits import ExitCode, exit_codes_text
from pswire.logs.events import event, last_words, set_up
from pswire.security.options import insecure_option, security_options
from pswire.transport.segments import SegmentError

log = logging.getLogger("ps-server")

EPILOG = "\b\nExit codes:\n" + exit_codes_text()

# What is wrong with the options, the experiment file or this machine.
WRONG = (SettingsError, ExperimentError, AddressError, PolicyError, OptimizerError, SegmentError)


@click.command(epilog=EPILOG, context_settings=CONTEXT)
@click.version_option(package_name="paramserver", prog_name="ps-server")
@click.option("--ps-hosts", metavar="HOST:PORT,...", help="All servers, in task order. Default: TF_CONFIG.")
@click.option(
    "--task-index",
    metavar="N|auto",
    help="Which of them this is; 0 is the coordinator too. auto: from TF_CONFIG, SLURM_PROCID, JOB_COMPLETION_INDEX or "
    "VC_TASK_INDEX.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    help="Interface to listen on. Default: loopback only. Any other needs TLS (--tls-ca) or --insecure.",
)
@insecure_option
@security_options
@click.option(
    "--data-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="TCP port for payloads, beside gRPC; workers that cannot reach it send them over gRPC.  [default: a free one]",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics for Prometheus on this port of the --bind address; 0: a free one. Default: no metrics.",
)
@config_option
@click.option(
    "--policy",
    metavar="NAME",
    shell_complete=completed_by(policies.names),
    help=f"{' | '.join(policies.names())}, or module:Class. Default: sync.",
)
@click.option(
    "--optimizer",
    metavar="NAME",
    shell_complete=completed_by(optimizer_names),
    help=f"{' | '.join(optimizer_names())}, or {FROM_JOB}: that of the first worker, which names it. Its knobs: "
    "ps-lab optimizers NAME lists them, --set optimizer.KNOB=VALUE sets one. Default: sgd.",
)
@click.option("--learning-rate", type=float, help="Default: 0.01. A schedule needs --config.")
@click.option(
    "--workers",
    type=int,
    help="How many the data is divided among; training starts when so many are ready. Default: 1.",
)
@click.option(
    "--min-workers",
    type=int,
    help="Training starts when so many are ready; the others may come later. Default: all.",
)
@click.option("--max-workers", type=int, help="Names of workers that may ever join. Default: no limit.")
@click.option(
    "--allow-worker",
    "allowed_workers",
    multiple=True,
    metavar="NAME",
    help="Only workers of these names may join. Repeatable. Default: any. With certificates or tokens a name is "
    "that of one of them; without, it is no proof of who uses it.",
)
@click.option(
    "--allow-missing",
    is_flag=True,
    default=None,
    help="A job in which a worker has left for good before its data ended, or batches were lost with a server, is a "
    "success. Default: exit code 13.",
)
@click.option("--versions", type=int, help="Stop at this version. Default: when the workers' data ends.")
@click.option(
    "--transport",
    type=click.Choice(["auto", "grpc", "socket", "shared-memory"]),
    help="How payloads may travel. auto: in memory shared with workers of this machine, over a plain socket to others, "
    "over gRPC where neither is available. Default: auto.",
)
@click.option(
    "--seed",
    type=int,
    help="The job's seed: order of the data, dropout and what other layers draw. A worker draws initial values "
    "before it joins: start every ps-worker with the same --set run.seed=N. Default: 0.",
)
@click.option("--worker-timeout", type=float, help="Longest wait for a silent worker, seconds. Default: 10.")
@click.option(
    "--ticket-timeout",
    metavar="SECONDS",
    help="Give up a worker that keeps a ticket for so long; 0: never. Default: auto, twenty usual steps, and only "
    "while another worker waits for it.",
)
@click.option(
    "--nonfinite-limit",
    type=int,
    help="End after so many updates in a row that would not be finite, and are refused. Default: 10.",
)
@click.option(
    "--idle-timeout",
    type=float,
    help="Give up after this long without workers, or, another server than 0, without that one (60 at least), seconds. "
    "Default: 600.",
)
@overrides_option("Any key of an experiment file, e.g. policy.max_staleness=2. Repeatable.")
@click.option(
    "--stay",
    is_flag=True,
    help="Do not exit when a job ends (task 0): a worker that joins then begins the next one, in a folder of its own, "
    "OUT/job-2. With --checkpoint-every a worker of the same model goes on in the same folder, with more epochs.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run folder for the decision log, metrics, summary and weights (task 0). None of a former run. Default: a new "
    "folder runs/TIME-JOB in the current directory.",
)
@click.option("--no-out", is_flag=True, help="Keep nothing: no log, and no trained model.")
@click.option(
    "--checkpoint-every",
    metavar="1000v|60s",
    help="Save everything after so many versions or seconds, and at the end, in --out (the same for all servers).",
)
@click.option("--keep", type=click.IntRange(min=1), help="Checkpoints that are kept. Default: 3.")
@click.option(
    "--rescue",
    metavar="DIR",
    help="Write the final weights there if --out does not take them: the disk is full, say (task 0). Default: the "
    "system's temporary folder.",
)
@click.option(
    "--resume",
    metavar="auto|latest|NAME",
    help="Go on in --out from this checkpoint (task 0), also with another number of servers. auto: from the latest, "
    "and begin where there is none; so a server that was killed can be started with the same command.",
)
@click.option(
    "--recover-timeout",
    metavar="SECONDS",
    help="When a server is lost, go back to the newest checkpoint, and wait so long for it to come back; 0: the job "
    "ends. Default: 60 where checkpoints are taken.",
)
@click.option(
    "--log-flush",
    metavar="SECONDS|wake-up|disk",
    default="0.2",
    show_default=True,
    help="When lines of the decision log leave this process (task 0). SECONDS: so often; killed, the process takes the "
    "decisions of the last SECONDS with it, of which workers may know. wake-up: before a worker is told, in one write "
    "for all that came at once; a killed process takes nothing that a worker knows, a machine that loses power takes "
    "what its system had not written yet. disk: on the disk (fsync) before a worker is told; not even that is lost.",
)
@number_option(
    "--arena-versions",
    2,
    3,
    "Copies of the model that this server may hold. With 2 an update waits until granted versions are read, and "
    "workers of this machine copy them rather than read them in place.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads that an update of this server may use.  [default: one per core, at most 4]",
)
@number_option("--staging-limit", 1, 4, "Gradients held out of order under a barrier.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="What the model and its workers may take of this server, e.g. 1GiB; a model that cannot fit is refused. "
    "Default: four fifths of what the machine or its container has.",
)
@click.option(
    "--wait-warning",
    type=float,
    default=10.0,
    show_default=True,
    help="Log why a worker waits, after this many seconds.",
)
@log_format_option("standard error")
@json_lines_option
@parent_option
def main(
    as_json: bool,
    log_format: str,
    parent: int | None,
    no_out: bool,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Hold one part of a model and apply what the workers push.

    \b
    On one machine, with two servers:
      ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 0 --workers 2
      ps-server --ps-hosts localhost:7070,localhost:7071 --task-index 1
    Then start workers with the same --ps-hosts (see ps-worker --help).

    Server 0 decides what becomes of every gradient; policy, optimizer and the
    other training options matter there only. The servers exit by themselves
    when all workers are done. Watch them with: ps-lab status HOST:PORT

    With PS_JOB_SECRET in the environment, the same for all servers of the job,
    no other process can give a server orders, and one that was lost may come
    back at another address.
    """
    set_up("ps-server", log_format)
    keep_large_blocks()
    raise_descriptors()
    try:
        options = chosen_options(given, overrides, no_out)
        settings = resolved(options)
        if settings.task_index == 0 and settings.out is None and not no_out:
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
    spare_what_is_here()
    sys.exit(int(serve(servers)))


def nothing_to_do(settings: ServerSettings, resume: str | None, announce: Announce) -> bool:
    """A server was started again by a supervisor, and its job has succeeded: say so, and leave the folder as it is."""
    if resume != AUTO or settings.out is None or settings.stay:
        return False
    ended = succeeded(settings.out)
    if ended is not None:
        reason = (
            f"the job in {settings.out} has succeeded before ({ended}); --resume latest trains on, and a new "
        )
        reason += "run needs another folder (--out)"
        announce("stopped", {"reason": reason, "exit_code": int(ExitCode.OK), "out": str(settings.out)})
    return ended is not None


def interrupt(servers: Servers, number: int, frame: FrameType | None) -> None:
    """A signal handler. Ctrl-C after another signal ends the process at once: no thread is waited for that a disk holds
    up. What is not written by then is lost as after a kill."""
    try:
        servers.interrupt(number, frame)
    except SystemExit:
        os._exit(128 + number)


def resolved(options: Options) -> ServerSettings:
    """As `psserver.settings.resolve`. This process does nothing but serve: the search for garbage leaves out what
    stays."""
    settings = resolve(options, os.environ.get("TF_CONFIG"))
    return replace(settings, host=replace(settings.host, loaded=spare_what_is_here))


def serve(servers: Servers) -> ExitCode:
    """Until no job follows; what keeps them from serving is one clear message and an exit code."""
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
    """A new runs/TIME-JOB, so that no training is for nothing; None, with a warning, where none can be made."""
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
