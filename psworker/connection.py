"""Where a worker's job is and how it gets there: one reading of arguments and environment for every entry."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict, Unpack

from pswire.addresses import Address, AddressError, parse_hosts
from pswire.command.task import cluster_from_tf_config
from pswire.environment import warn_of_misspelt
from pswire.model.plan import parts_of
from pswire.nearest import did_you_mean
from pswire.patience import SERVER_TIMEOUT
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityOptions, credentials_for
from pswire.transport.wire import wire_named
from psworker.errors import Untrusted
from psworker.servers import EmbeddedServer

TRANSPORTS = ("auto", "grpc", "socket", "shared-memory")
Hosts = str | Sequence[str | Address] | None


class Where(TypedDict, total=False):
    """The arguments of every entry into a job. What is None or left out is read from the environment, or a default."""

    name: str | None
    """of this worker; the servers choose one by default"""
    task_index: int | None
    """this worker's part of the data; PS_TASK_INDEX, or TF_CONFIG's if it names the servers; else the servers choose"""
    wire_dtype: str | None
    """encoding of gradients and weights; PS_WIRE_DTYPE; "float32" by default"""
    transport: str | None
    """"auto" shares memory with servers on this machine if that is available and `wire_dtype` is float32, as all shared
    memory is, and otherwise uses a socket beside gRPC; "grpc" uses neither; "socket" and "shared-memory" raise Refused
    with the first payload if that transport is unavailable; PS_TRANSPORT; "auto" by default"""
    server_timeout: float | None
    """seconds to retry a server that does not answer; 60"""
    replicas: int | None
    """2 if the servers were started with `--replicas 2`; PS_REPLICAS; 1"""
    tls_ca: str | Path | None
    """PEM file of trusted authorities, with which the session speaks TLS only; PS_TLS_CA"""
    tls_cert: str | Path | None
    """PEM file of this worker's certificate; PS_TLS_CERT"""
    tls_key: str | Path | None
    """PEM file of its key; PS_TLS_KEY"""
    credentials: Credentials | None
    """in place of the three files"""
    policy: str | None
    """of a server that is started here, as the next two; refused where servers run already; "sync" by default"""
    seed: int | None
    """of the data order, initial values and random layers; 0"""
    out: str | Path | None
    """the run folder; none by default"""


class OwnServer(NamedTuple):
    """What a server that this process starts is started with."""

    policy: str = "sync"
    seed: int = 0
    out: Path | None = None

    def start(self, optimizer: Mapping[str, Any]) -> EmbeddedServer:
        """Start it on loopback. Raises EmbeddedServerError."""
        return EmbeddedServer(optimizer, self.policy, self.seed, self.out)


@dataclass(frozen=True, slots=True)
class Connection:
    """A worker's way to its servers. `own`: there are none yet, and this process starts one for itself alone."""

    hosts: tuple[Address, ...]
    name: str | None = None
    task_index: int | None = None
    wire_dtype: str = "float32"
    transport: str = "auto"
    server_timeout: float = SERVER_TIMEOUT
    replicas: bool = False
    credentials: Credentials = NO_TLS
    own: OwnServer | None = None

    @classmethod
    def resolve(cls, hosts: Hosts = None, **given: Unpack[Where]) -> Self:
        """Read the arguments of an entry, and the environment where they say nothing.

        Servers are those of `hosts` ("host:port,host:port", in task order), else of PS_HOSTS, else of TF_CONFIG.
        Without any this process starts one. Raises TypeError for an unknown argument, AddressError and ValueError for
        values that make no sense, Untrusted for bad certificates.
        """
        unknown = sorted(given.keys() - Where.__annotations__.keys())
        if unknown:
            raise TypeError(
                f"unexpected argument {unknown[0]!r}{did_you_mean(unknown[0], list(Where.__annotations__))}"
            )
        environment = os.environ
        warn_of_misspelt(environment)
        servers, index = named_servers(hosts, environment)
        wire_dtype = given.get("wire_dtype") or environment.get("PS_WIRE_DTYPE") or "float32"
        transport = given.get("transport") or environment.get("PS_TRANSPORT") or "auto"
        timeout = given.get("server_timeout")
        _check_wire(wire_dtype, transport)
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"server_timeout: expected seconds from 0, got {timeout!r}")
        task_index = given.get("task_index")
        if task_index is not None and task_index < 0:
            raise ValueError(f"task_index: expected a number from 0, got {task_index!r}")
        if task_index is None and servers:
            asked = task_index_in(environment)
            task_index = index if asked is None else asked
        replicas = _replicas(given.get("replicas"), environment)
        return cls(
            servers,
            given.get("name"),
            task_index,
            wire_dtype,
            transport,
            SERVER_TIMEOUT if timeout is None else timeout,
            bool(servers) and replicas,
            _credentials(given, task_index) if servers else NO_TLS,
            _own(given, servers),
        )

    @property
    def parts(self) -> int:
        """Parts into which the model is cut."""
        return parts_of(len(self.hosts) or 1, 2 if self.replicas else 1)

    def at(self, server: EmbeddedServer) -> Self:
        """Return the way to a server that this process has started."""
        return replace(self, hosts=(server.address,), own=None)


def named_servers(hosts: Hosts, environment: Mapping[str, str]) -> tuple[tuple[Address, ...], int | None]:
    """Return the servers, and the task index if TF_CONFIG names them."""
    if hosts is not None:
        return parse_hosts(hosts if isinstance(hosts, str) else ",".join(map(str, hosts))), None
    if environment.get("PS_HOSTS"):
        return parse_hosts(environment["PS_HOSTS"]), None
    if not environment.get("TF_CONFIG"):
        return (), None
    cluster = cluster_from_tf_config(environment["TF_CONFIG"])
    if cluster.task_type != "worker":
        raise AddressError(
            f"TF_CONFIG: task.type: expected worker or chief, got {cluster.task_type}: a server is started with the "
            "ps-server command"
        )
    return cluster.ps, cluster.task_index


def task_index_in(environment: Mapping[str, str]) -> int | None:
    """Return PS_TASK_INDEX, or None if it is not set. Raises AddressError."""
    text = environment.get("PS_TASK_INDEX")
    if not text:
        return None
    if not (text.isdecimal() and len(text) < 10):
        raise AddressError(f"PS_TASK_INDEX: expected a number from 0, got {text[:40]!r}")
    return int(text)


def _replicas(given: int | None, environment: Mapping[str, str]) -> bool:
    source, text = ("PS_REPLICAS", environment.get("PS_REPLICAS") or "1")
    if given is not None:
        source, text = "replicas", str(given)
    if text not in ("1", "2"):
        raise AddressError(f"{source}: expected 1 or 2, got {text[:40]!r}")
    return text == "2"


def _check_wire(wire_dtype: str, transport: str) -> None:
    wire = wire_named(wire_dtype)
    if transport not in TRANSPORTS:
        raise ValueError(f"transport: expected one of {', '.join(TRANSPORTS)}, got {transport!r}")
    if transport == "shared-memory" and (wire.up.scaled or wire.deltas):
        raise ValueError(
            f"shared memory carries float32: expected another transport beside wire_dtype {wire_dtype!r}"
        )


def _credentials(given: Where, task_index: int | None) -> Credentials:
    found = given.get("credentials")
    if found is not None:
        return found
    files = (given.get("tls_ca"), given.get("tls_cert"), given.get("tls_key"))
    ca, cert, key = (None if path is None else str(path) for path in files)
    options = SecurityOptions(ca, cert, key)
    try:
        name = given.get("name") or ("" if task_index is None else f"w{task_index}")
        return credentials_for(Role.WORKER, options, os.environ, name=name)
    except IdentityError as error:
        raise Untrusted(str(error)) from error


def _own(given: Where, servers: Sequence[Address]) -> OwnServer | None:
    chosen = {name: given.get(name) for name in ("policy", "seed", "out")}
    for name, value in chosen.items():
        if servers and value is not None:
            raise ValueError(
                f"{name}={value!r} is for a server that is started here, and servers run already, at "
                f"{','.join(map(str, servers))}: expected no {name} here; give it to ps-server or ps-lab run"
            )
    for name in ("replicas", "tls_ca", "tls_cert", "tls_key"):
        if not servers and given.get(name) not in (None, 1):
            raise ValueError(
                f"{name}={given.get(name)!r} is for servers that run already, and none are named: expected hosts=, "
                "PS_HOSTS or TF_CONFIG beside it"
            )
    out = given.get("out")
    own = OwnServer(given.get("policy") or "sync", given.get("seed") or 0, None if out is None else Path(out))
    return None if servers else own
