"""The settings of one server, from options, an experiment file and TF_CONFIG."""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from psserver.coordinator import JobTerms
from psserver.optimizers import Optimizer
from psserver.optimizers import build as build_optimizer
from psserver.options import Options
from psserver.policies import build as build_policy
from psserver.policy_plan import plan_of
from psserver.service.job.agreement import FROM_JOB
from psserver.service.life.settings import ServerSettings, new_job_name
from psserver.service.store.host import HostOptions
from psserver.shard.fragments import check_fragments
from pswire.addresses import Address, parse_hosts
from pswire.command.options import chosen_keys, read_options, typed_options
from pswire.command.task import chosen_task_index, cluster_from_tf_config
from pswire.config.experiment import Experiment
from pswire.config.flags import SERVER
from pswire.config.run_sections import RECOVER
from pswire.config.units import parse_size
from pswire.environment import warn_of_misspelt
from pswire.extras import how_to_install
from pswire.security.credentials import Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.secret import Secret
from pswire.security.settings import SecurityError, credentials_for, job_secret

MAX_THREADS = 4


class SettingsError(ValueError):
    """Options that make no valid server. The text names the option and what was expected."""


class UntrustedError(ValueError):
    """A certificate that peers would reject. The text says why."""


def chosen_options(given: Mapping[str, Any], overrides: Sequence[str], task_index: str | None) -> Options:
    """Read the options from the command line and the environment.

    Raises SettingsError, OptionError or AddressError.
    """
    warn_of_misspelt(os.environ)
    keys = {name: value for name, value in given.items() if name not in Options.model_fields}
    options = read_options(
        Options,
        given,
        task_index=chosen_task_index(task_index, "ps-server"),
        overrides=chosen_keys(SERVER, keys, overrides),
        typed=typed_options(keys),
        job_secret=_job_secret(),
        environment=os.environ,
    )
    if options.no_out and options.out is not None:
        raise SettingsError("--out and --no-out exclude each other")
    return options


def usual_threads() -> int:
    """Return the default number of threads of an update: beyond a few, memory bandwidth is the limit."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MAX_THREADS)


def resolve(options: Options, tf_config: str | None) -> ServerSettings:
    """Resolve options to the settings of a server.

    Raises SettingsError, ExperimentError, AddressError, PolicyError or OptimizerError; UntrustedError for a bad
    certificate.
    """
    hosts, index, workers = _cluster(options, tf_config)
    experiment = _experiment(options, len(hosts), workers)
    cluster, run = experiment.cluster, experiment.run
    saves = run.checkpoints
    if options.resume is not None and options.out is None:
        raise SettingsError("--resume continues in the folder of a run: expected --out RUN as well")
    if options.no_out and (saves is not None or run.rescue):
        asked = "--rescue" if run.rescue else "--checkpoint-every"
        raise SettingsError(
            f"{asked} keeps what a run made, and --no-out keeps nothing: expected one of the two"
        )
    optimizer = _optimizer(experiment)
    policy = build_policy(experiment.policy.name, experiment.policy.knobs, cluster.workers, cluster.parts)
    if experiment.job.patience and policy.tensors.aggregator != "mean":
        raise SettingsError(
            f"job.patience: worker 0 alone evaluates, and {policy.name} tolerates bad workers, of which one could end "
            "the job with it; expected 0, or another policy"
        )
    check_fragments(policy.tensors.fragments, optimizer, replicas=cluster.replicas)
    source = "TF_CONFIG" if options.ps_hosts is None else "--ps-hosts"
    bind = _bind(options.bind, hosts[index], source)
    credentials = _credentials(options, experiment, index, len(hosts))
    exposed = _exposure(bind, credentials)
    if cluster.replicas > 1:
        _check_replicas(options)
    return ServerSettings(
        hosts=hosts,
        task_index=index,
        bind=bind,
        terms=JobTerms(
            job=new_job_name(),
            servers=cluster.parts,
            workers=cluster.workers,
            seed=run.seed,
            worker_timeout=cluster.worker_timeout,
            idle_timeout=cluster.idle_timeout,
            min_workers=cluster.min_workers,
            max_workers=cluster.max_workers,
            allowed=tuple(cluster.allowed_workers),
            versions=run.versions,
            checkpoint_versions=int(saves.of("versions")) if saves else 0,
            checkpoint_seconds=saves.of("s") if saves else 0.0,
            nonfinite_limit=cluster.nonfinite_limit,
            allow_missing=cluster.allow_missing,
            ticket_timeout=None if cluster.ticket_timeout == "auto" else cluster.ticket_timeout,
            plan=plan_of(experiment, policy, optimizer),
        ),
        policy=policy,
        optimizer=optimizer,
        host=HostOptions(
            arena_versions=options.arena_versions,
            threads=options.threads or usual_threads(),
            transport=cluster.transport,
            worker_timeout=cluster.worker_timeout,
            memory_limit=_memory_limit(options.memory_limit),
        ),
        data_port=options.data_port,
        metrics_port=_metrics_port(options.metrics_port, experiment),
        out=options.out,
        keep=run.keep if saves else 0,
        rescue=Path(run.rescue) if run.rescue else None,
        recover=_recover(cluster.recover_timeout, taken=saves is not None and options.out is not None),
        resume=options.resume if index == 0 or cluster.replicas > 1 else None,
        log_to_disk=options.log_flush == "disk",
        credentials=credentials,
        exposure=exposed,
        replicas=cluster.replicas,
    )


# What each server takes from its own command line; all else server 0 decides for all.
_OWN = (
    *(
        "security.",
        "cluster.transport.",
        "cluster.worker_timeout.",
        "cluster.recover_timeout.",
        "cluster.replicas.",
    ),
    *("cluster.metrics.", "run.checkpoint_every.", "run.keep."),
)


def decided_by_server_0(options: Options) -> list[str]:
    """Return the options that another server than server 0 was given and does not use."""
    keys = [text.partition("=")[0].strip() for text in options.overrides]
    of_experiment = [options.typed.get(key, f"--set {key}") for key in keys if not f"{key}.".startswith(_OWN)]
    of_process = {
        "--resume": options.resume is not None,
        "--log-flush": options.log_flush == "disk",
    }
    return [*of_experiment, *(option for option, given in of_process.items() if given)]


def _check_replicas(options: Options) -> None:
    """Raise SettingsError for what servers with replicas do not do."""
    if options.out is None:
        raise SettingsError(
            "--replicas 2: expected --out RUN, one folder that all servers see: for its log and for what they promise"
        )


def _optimizer(experiment: Experiment) -> Optimizer | None:
    """Return the experiment's optimizer, or None to take the first worker's."""
    section = experiment.optimizer
    if section.name != FROM_JOB:
        return build_optimizer(section.config)
    named = sorted({*section.model_fields_set, *(section.model_extra or {})} - {"name"})
    if named:
        raise SettingsError(
            f'optimizer "{FROM_JOB}" takes the first worker\'s optimizer and settings: expected no more, got {named[0]}'
        )
    return None


def _cluster(options: Options, tf_config: str | None) -> tuple[tuple[Address, ...], int, int | None]:
    """Return the addresses of the servers, the index of this one, and the number of workers if TF_CONFIG has it."""
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
                f"--ps-hosts lists {len(hosts)} servers: expected --task-index from 0 to {len(hosts) - 1}"
            )
        index = 0
    if not 0 <= index < len(hosts):
        numbers = f"from 0 to {len(hosts) - 1}" if len(hosts) > 1 else "0"
        listed = f"{len(hosts)} servers" if len(hosts) > 1 else "one server"
        raise SettingsError(f"--ps-hosts lists {listed}: expected --task-index {numbers}, got {index}")
    return hosts, index, workers


def _experiment(options: Options, servers: int, workers: int | None) -> Experiment:
    if options.config is not None:
        experiment = Experiment.load(options.config, options.overrides, options.typed)
        if experiment.cluster.servers != servers:
            raise SettingsError(
                f"{options.config} says cluster.servers = {experiment.cluster.servers}, but there are {servers} "
                "addresses in --ps-hosts"
            )
        return experiment
    known = {"servers": servers} if workers is None else {"servers": servers, "workers": workers}
    return Experiment.load(None, options.overrides, options.typed, {"cluster": known})


def _metrics_port(asked: int | None, experiment: Experiment) -> int | None:
    """Return the metrics port, or None for no metrics; 0 (a free port) if only the experiment asks for metrics."""
    port = 0 if asked is None and experiment.cluster.metrics else asked
    if port is not None and find_spec("prometheus_client") is None:
        raise SettingsError(f"metrics need prometheus_client: {how_to_install('metrics')}")
    return port


def _recover(asked: float | str, *, taken: bool) -> float:
    """Return how long a lost server is awaited; 0 for a job without checkpoints, to which none can return."""
    if not taken:
        return 0.0
    return RECOVER if isinstance(asked, str) else float(asked)


def _memory_limit(asked: str | None) -> int:
    try:
        return 0 if asked is None else parse_size(asked)
    except ValueError as error:
        raise SettingsError(f"--memory-limit: {error}") from error


def _bind(bind: str | None, own: Address, source: str) -> str:
    """Return the address to listen on: loopback by default. `source`: where `own` was given, for the error."""
    if bind is not None:
        return bind
    if own.host == "localhost" or _is_loopback(own.host):
        return own.host
    raise SettingsError(
        f"{source} gives this server the address {own}, but by default a server listens on loopback only: "
        f"add --bind {own.host} (or --bind 0.0.0.0 for every interface), with {PROTECTED}"
    )


# What a server that other machines reach needs.
PROTECTED = (
    "--tls-ca, --tls-cert and --tls-key (ps-lab certs makes the files), or with --insecure on a network where you "
    "trust everybody"
)


def _job_secret() -> str:
    try:
        return job_secret(os.environ)
    except SecurityError as error:
        raise SettingsError(str(error)) from error


def _credentials(options: Options, experiment: Experiment, index: int, servers: int) -> Credentials:
    try:
        found = credentials_for(
            Role.SERVER, options.security, options.environment, experiment.security, name=f"server-{index}"
        )
    except SecurityError as error:
        raise SettingsError(str(error)) from error
    except IdentityError as error:
        raise UntrustedError(str(error)) from error
    return replace(found, job_secret=Secret(options.job_secret.encode()))


def _exposure(bind: str, credentials: Credentials) -> str | None:
    """Return a warning about a server without TLS that other machines can reach; None for loopback.

    Raises SettingsError unless --insecure allows it.
    """
    if credentials.encrypted or bind == "localhost" or _is_loopback(bind):
        return None
    where = "every interface" if bind in ("0.0.0.0", "::") else bind
    if not credentials.insecure:
        raise SettingsError(
            f"--bind {bind}: other machines reach this address, and nothing protects it: expected {PROTECTED}"
        )
    return (
        f"listening on {where} without TLS (--insecure): anyone who reaches this server can join, read the model and "
        "push gradients, and anyone on the network path can read all of it"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
