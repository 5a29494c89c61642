"""From options, an experiment file and TF_CONFIG to the settings of one server."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SkipValidation

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.optimizers import build as build_optimizer
from psserver.policies import build as build_policy
from psserver.service.job.agreement import FROM_JOB
from psserver.service.job.run_log import LogFlush, parse_flush
from psserver.service.life.settings import ProcessSection, ServerSettings, new_job_name
from psserver.service.store.host import HostOptions
from pswire.addresses import Address, parse_hosts
from pswire.command.options import read_options, typed_options
from pswire.command.task_index import chosen_task_index
from pswire.command.tf_config import cluster_from_tf_config
from pswire.config.checkpoints import Every, parse_every
from pswire.config.experiment import Experiment, load_experiment
from pswire.config.flags import SERVER, Flag
from pswire.config.run_sections import RECOVER
from pswire.config.toml import overrides_of
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityError, SecurityOptions, credentials_for
from pswire.security.tokens import TokenError
from pswire.sizes import parse_size

MOST_THREADS = 4


class SettingsError(ValueError):
    """Options that do not make a server; the text says which and what was expected."""


class UntrustedError(ValueError):
    """A certificate that nobody would believe; the text says why."""


class Options(ProcessSection):
    """The command line as it came in; None where an option was not given."""

    ps_hosts: str | None = None
    task_index: int | None = None

    bind: Annotated[str | None, Flag((SERVER,), metavar="ADDRESS")] = None
    """interface to listen on; not given: loopback only. Any other needs TLS (`--tls-ca`) or `--insecure`"""

    metrics_port: Annotated[int | None, Field(ge=0, le=65535), Flag((SERVER,))] = None
    """serve /metrics for Prometheus on this port of the `--bind` address; 0: a free one; not given: no metrics"""

    threads: Annotated[int | None, Field(ge=1), Flag((SERVER,))] = None
    """threads that an update of this server may use; not given: one per core that the process may use, at most 4"""

    memory_limit: Annotated[str | None, Flag((SERVER,), metavar="SIZE")] = None
    """what the model and its workers may take of this server, e.g. 1GiB; a model that cannot fit is refused. Not given:
    four fifths of what the machine or its container has"""

    out: Annotated[Path | None, Flag((SERVER,))] = None
    """run folder for the decision log, metrics, summary and weights (task 0), none of a former run; not given: a new
    folder runs/TIME-JOB in the current directory"""

    resume: Annotated[str | None, Flag((SERVER,), metavar="auto|latest|NAME")] = None
    """go on in `--out` from this checkpoint (task 0), also with another number of servers. auto: from the latest, and
    begin where there is none; so a server that was killed can be started with the same command"""

    log_flush: Annotated[str, Flag((SERVER,), metavar="SECONDS|wake-up|disk")] = "0.2"
    """when lines of the decision log leave this process (task 0). SECONDS: so often; killed, the process takes the
    decisions of the last SECONDS with it, of which workers may know. wake-up: before a worker is told, in one write for
    all that came at once; a killed process takes nothing that a worker knows, a machine that loses power takes what its
    system had not written yet. disk: on the disk (fsync) before a worker is told; not even that is lost"""

    no_out: Annotated[bool, Flag((SERVER,))] = False
    """keep nothing: no log, and no trained model"""

    config: Path | None = None
    overrides: Sequence[str] = ()
    # By key of an experiment, the option that said it.
    typed: Mapping[str, str] = Field(default_factory=dict)
    # From PS_JOB_SECRET: never an option, which every user of the machine could read.
    job_secret: str = Field(default="", repr=False)
    security: SecurityOptions = SecurityOptions()
    # Where PS_TLS_CA, PS_TOKEN and the like may stand.
    environment: Annotated[Mapping[str, str], SkipValidation] = Field(default_factory=dict, repr=False)


def chosen_options(given: Mapping[str, Any], overrides: Sequence[str], task_index: str | None) -> Options:
    """From the command line, by parameter, and the environment. Raises SettingsError, OptionError, AddressError."""
    keys = {name: value for name, value in given.items() if name not in Options.model_fields}
    options = read_options(
        Options,
        given,
        task_index=chosen_task_index(task_index, "ps-server"),
        overrides=(*overrides_of(keys), *overrides),
        typed=typed_options(keys),
        job_secret=os.environ.get("PS_JOB_SECRET", ""),
        environment=os.environ,
    )
    if options.no_out and options.out is not None:
        raise SettingsError("--out and --no-out exclude each other")
    return options


def usual_threads() -> int:
    """Of an update: beyond a few, memory is the limit."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MOST_THREADS)


def resolve(options: Options, tf_config: str | None) -> ServerSettings:
    """Raises SettingsError, ExperimentError, AddressError, PolicyError or OptimizerError; UntrustedError for a
    certificate that is not good."""
    hosts, index, workers = _cluster(options, tf_config)
    experiment = _experiment(options, len(hosts), workers)
    cluster, run = experiment.cluster, experiment.run
    every = parse_every(run.checkpoint_every)
    if options.resume is not None and options.out is None:
        raise SettingsError("--resume goes on in the folder of a run: expected --out RUN, too")
    optimizer = _optimizer(experiment)
    policy = build_policy(experiment.policy.name, experiment.policy.knobs, cluster.workers, len(hosts))
    if optimizer is not None:
        optimizer.check_aggregator(policy.tensors.aggregator)
    source = "TF_CONFIG" if options.ps_hosts is None else "--ps-hosts"
    bind = _bind(options.bind, hosts[index], source)
    credentials = _credentials(options, experiment, index, len(hosts))
    exposed = _exposure(bind, credentials)
    return ServerSettings(
        hosts=hosts,
        task_index=index,
        bind=bind,
        terms=JobTerms(
            job=new_job_name(),
            optimizer={"name": FROM_JOB} if optimizer is None else optimizer.config,
            servers=len(hosts),
            workers=cluster.workers,
            seed=run.seed,
            worker_timeout=cluster.worker_timeout,
            idle_timeout=cluster.idle_timeout,
            min_workers=cluster.min_workers,
            max_workers=cluster.max_workers,
            allowed=tuple(cluster.allowed_workers),
            versions=run.versions,
            checkpoint_versions=every.versions,
            checkpoint_seconds=every.seconds,
            nonfinite_limit=cluster.nonfinite_limit,
            allow_missing=cluster.allow_missing,
            ticket_timeout=None if cluster.ticket_timeout == "auto" else cluster.ticket_timeout,
        ),
        policy=policy,
        optimizer=optimizer,
        host=HostOptions(
            arena_versions=options.arena_versions,
            staging=options.staging_limit,
            threads=options.threads or usual_threads(),
            transport=cluster.transport,
            worker_timeout=cluster.worker_timeout,
            memory_limit=_memory_limit(options.memory_limit),
        ),
        process=options,
        metrics_port=_metrics_port(options.metrics_port, experiment),
        out=options.out,
        job_secret=options.job_secret.encode(),
        keep=run.keep if every != Every() else 0,
        rescue=Path(run.rescue) if run.rescue else None,
        recover=_recover(cluster.recover_timeout, taken=every != Every() and options.out is not None),
        resume=options.resume if index == 0 else None,
        log_flush=_log_flush(options.log_flush),
        credentials=credentials,
        exposure=exposed,
    )


def _log_flush(text: str) -> LogFlush:
    try:
        return parse_flush(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _optimizer(experiment: Experiment) -> Optimizer | None:
    """None: the first worker's."""
    section = experiment.optimizer
    if section.name != FROM_JOB:
        return build_optimizer(section.config)
    said = sorted({*section.model_fields_set, *(section.model_extra or {})} - {"name"})
    if said:
        raise SettingsError(
            f'optimizer "{FROM_JOB}" is the first worker\'s, with its numbers: expected no more, got {said[0]}'
        )
    return None


def _cluster(options: Options, tf_config: str | None) -> tuple[tuple[Address, ...], int, int | None]:
    """Addresses of the servers, which one this is, and the number of workers if TF_CONFIG says it."""
    workers: int | None = None
    index = options.task_index
    if options.ps_hosts is not None:
        hosts = parse_hosts(options.ps_hosts)
    elif tf_config:
        cluster = cluster_from_tf_config(tf_config)
        if cluster.task_type != "ps":
            raise SettingsError(f"TF_CONFIG: task.type: expected ps for a ps-server, got {cluster.task_type}")
        hosts, workers = cluster.ps, cluster.workers
        index = cluster.task_index if index is None else index
    else:
        raise SettingsError(
            "expected --ps-hosts host:port,... (or TF_CONFIG in the environment), got neither"
        )
    if index is None:
        if len(hosts) > 1:
            raise SettingsError(
                f"--ps-hosts lists {len(hosts)} servers: expected --task-index 0..{len(hosts) - 1}"
            )
        index = 0
    if not 0 <= index < len(hosts):
        raise SettingsError(
            f"--task-index: expected 0..{len(hosts) - 1} for {len(hosts)} servers, got {index}"
        )
    return hosts, index, workers


def _experiment(options: Options, servers: int, workers: int | None) -> Experiment:
    if options.config is not None:
        experiment = load_experiment(options.config, options.overrides, options.typed)
        if experiment.cluster.servers != servers:
            raise SettingsError(
                f"{options.config} says cluster.servers = {experiment.cluster.servers}, but there are {servers} "
                "addresses in --ps-hosts"
            )
        return experiment
    known = {"servers": servers} if workers is None else {"servers": servers, "workers": workers}
    return load_experiment(None, options.overrides, options.typed, {"cluster": known})


def _metrics_port(asked: int | None, experiment: Experiment) -> int | None:
    """None: no metrics. A free port where the experiment asks for metrics and nobody for a port."""
    port = 0 if asked is None and experiment.cluster.metrics else asked
    if port is not None and find_spec("prometheus_client") is None:
        raise SettingsError("metrics need prometheus_client: pip install 'paramserver[metrics]'")
    return port


def _recover(asked: float | str, *, taken: bool) -> float:
    """Nobody comes back to a job that saves nothing."""
    if not taken:
        return 0.0
    return RECOVER if isinstance(asked, str) else float(asked)


def _memory_limit(asked: str | None) -> int:
    try:
        return 0 if asked is None else parse_size(asked)
    except ValueError as error:
        raise SettingsError(f"--memory-limit: {error}") from error


def _bind(bind: str | None, own: Address, source: str) -> str:
    """Loopback unless told otherwise; a server that others cannot reach says so at once. `source` said where it is."""
    if bind is not None:
        return bind
    if own.host == "localhost" or _is_loopback(own.host):
        return own.host
    raise SettingsError(
        f"{source} gives this server the address {own}, but a server listens on loopback unless told otherwise: "
        f"add --bind {own.host} (or --bind 0.0.0.0 for every interface), with {PROTECTED}"
    )


# What a server needs that listens where others reach it.
PROTECTED = (
    "--tls-ca, --tls-cert and --tls-key (ps-lab certs makes the files), or with --insecure on a network where you "
    "trust everybody"
)


def _credentials(options: Options, experiment: Experiment, index: int, servers: int) -> Credentials:
    try:
        found = credentials_for(
            Role.SERVER, options.security, options.environment, experiment.security, name=f"server-{index}"
        )
        if servers > 1:
            # Any server may have to show its own: server 0 does, to all others.
            _ = found.metadata
    except (SecurityError, TokenError) as error:
        raise SettingsError(str(error)) from error
    except IdentityError as error:
        raise UntrustedError(str(error)) from error
    return found


def _exposure(bind: str, credentials: Credentials) -> str | None:
    """A warning about who can reach a server without TLS; None where that is this machine only. Raises SettingsError
    for a server that others reach, unless somebody has said that this is meant."""
    if credentials.encrypted or bind == "localhost" or _is_loopback(bind):
        return None
    where = "every interface" if bind in ("0.0.0.0", "::") else bind
    if not credentials.insecure:
        raise SettingsError(
            f"--bind {bind}: other machines reach this address, and nothing protects it: expected {PROTECTED}"
        )
    return (
        f"listening on {where} without TLS (--insecure): whoever reaches this server can join, read the model and push "
        "gradients, and whoever sees the network reads all of it"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
