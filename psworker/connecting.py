"""How a training loop joins a job: the servers, the variables, the credentials."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pswire.addresses import Address
from pswire.logs.events import event
from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec
from pswire.nearest import did_you_mean
from pswire.patience import SERVER_TIMEOUT
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityOptions, credentials_for
from psworker.control.joining import FIRST, Phase
from psworker.errors import Refused, Untrusted
from psworker.function import function_of
from psworker.local import PLAIN
from psworker.servers import EmbeddedServer, find_servers
from psworker.session import Session
from psworker.work import WorkUnits

log = logging.getLogger("ps-worker")

# Initial values by name, or with the specifications of the variables; or a Keras model.
Variables = Mapping[str, ArrayLike] | Sequence[tuple[VariableSpec, ArrayLike]] | Any
# The ends of Keras' names for what layers keep beside their weights.
_STATE = ("moving_mean", "moving_variance", "moving_norm")


def connect(
    hosts: str | Sequence[str | Address] | None = None,
    variables: Variables | None = None,
    *,
    name: str | None = None,
    task_index: int | None = None,
    wire_dtype: str = "float32",
    server_timeout: float = SERVER_TIMEOUT,
    transport: str = "auto",
    prefetch: bool = False,
    local_rules: bool = False,
    optimizer: Mapping[str, Any] | None = None,
    state: Collection[str] | None = None,
    work: WorkUnits | None = None,
    epochs: int = 1,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    credentials: Credentials | None = None,
    phase: Phase = FIRST,
    computes: str = "",
    function: str = "",
    tables: Sequence[TableSpec] = (),
) -> Session:
    """Join the job on `hosts` ("host:port,host:port", in task order) and open a session.

    Without `hosts`, PS_HOSTS or TF_CONFIG name the servers. If neither is set, this starts one on loopback for this
    process alone, with `optimizer` (sgd by default), which ends with the session. PS_REPLICAS=2 says that they were
    started with `--replicas 2`.

    `variables`: a built Keras model, or initial values, by name or with their specifications. Of a model, trainable
    variables are trained and others (BatchNorm's averages) are state: changes are pushed, and no optimizer moves them;
    `psworker.tensorflow.named_variables` has both by name. With values by name, `state` names the state; a warning
    names variables that look like state and are not listed. The first worker of a job installs its values; all others
    must name the same variables.
    `name`, `task_index`: this worker's name and part of the data; the servers choose what is None.
    `server_timeout`: seconds to retry a server that does not answer.
    `transport`: "auto" shares memory with servers on this machine if that is available and `wire_dtype` is float32, as
    all shared memory is, and otherwise uses a socket beside gRPC; "grpc" uses neither; "socket" and "shared-memory"
    raise Refused with the first payload if that transport is unavailable.
    `prefetch`: enable `Session.prefetch`.
    `local_rules`: the caller does what the policy wants done between pull and push (`Session.local_work`, as
    `psworker.train` does). Otherwise a policy that wants more than gradients refuses the worker.
    `optimizer`: the [optimizer] that this worker expects ({"name": "adam", "learning_rate": 0.001}). A server with
    another one refuses the worker; one that was started with "from-job" adopts it.
    `work`: the coordinator deals the data, for `epochs` epochs, and each grant names a part (`Session.unit`). All
    workers of a job give the same.
    `tls_ca`, `tls_cert`, `tls_key`: PEM files of trusted authorities, of this worker's certificate and of its key; with
    them the session speaks TLS only. The environment provides those that are None (PS_TLS_CA, PS_TLS_CERT,
    PS_TLS_KEY). `credentials`: replaces them all.
    `computes`: what this worker computes with ("torch on cuda:0", at most 128 characters), for log, status and
    dashboard.
    `function`: what decides the model's function beside its variables (`psworker.function.function_of`); of a Keras
    model it is found. Workers whose layers, vocabularies or constants differ are refused.
    `tables`: sparse tables beside the variables; all workers name the same. Their rows come into being on the servers,
    when a gradient for them is applied.
    `phase`: for a process that trains more than once with these servers, see `psworker.control.joining.Phase`.

    Raises Refused (another model, optimizer or job, or a local rule), Untrusted (certificates, or names that belong
    to others), Unreachable, EmbeddedServerError, and ValueError for variables, addresses, a dtype, a transport
    or files that make no sense.
    """
    if variables is None:
        raise TypeError(
            "connect() needs the model, or its variables: connect(hosts, model), or connect(variables=model)"
        )
    specs = specified(variables, state)
    place = find_servers(hosts, os.environ)
    if place is None:
        # The embedded server listens on loopback only.
        credentials = NO_TLS
    elif credentials is None:
        credentials = worker_credentials(tls_ca, tls_cert, tls_key)
    server = None if place is not None else EmbeddedServer(optimizer or {}, "sync", 0, None)
    index = task_index if place is None or task_index is not None else place.task_index
    try:
        session = Session(
            place.hosts if place is not None else (server.address,),  # type: ignore[union-attr]
            specs,
            name=name,
            task_index=index,
            wire_dtype=wire_dtype,
            server_timeout=server_timeout,
            transport=transport,
            prefetch=prefetch,
            optimizer=optimizer,
            work=work,
            epochs=epochs,
            credentials=credentials,
            phase=phase,
            computes=computes,
            function=function or ("" if server is not None else _compared(variables)),
            tables=tables,
            replicas=place is not None and place.replicas,
        )
    except BaseException:
        if server is not None:
            server.end()
        raise
    if server is not None:
        session.at_close(server.close, server.end)
    rule = session.local_rule
    if rule != PLAIN and not local_rules:
        session.close(f"does not know the local rule {rule}")
        raise Refused(
            f"this job's policy asks its workers for the local rule {rule!r}, and this training loop pushes plain "
            "gradients: use ps-worker or psworker.train, or session.local_work() and connect(local_rules=True)"
        )
    return session


def worker_credentials(
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> Credentials:
    """Return the credentials that `connect` would use. Raises Untrusted, ValueError."""
    ca, cert, key = (None if path is None else str(path) for path in (tls_ca, tls_cert, tls_key))
    try:
        return credentials_for(Role.WORKER, SecurityOptions(ca, cert, key), os.environ)
    except IdentityError as error:
        raise Untrusted(str(error)) from error


def specified(variables: Variables, state: Collection[str] | None) -> list[tuple[VariableSpec, ArrayLike]]:
    """Return the variables with specifications. Raises ValueError for a model that is not built, and unknown
    `state`."""
    if hasattr(variables, "trainable_weights"):
        _no_state_beside(state, "a Keras model, which knows its state")
        return _of_model(variables)
    if not isinstance(variables, Mapping):
        _no_state_beside(state, "specifications, which say it")
        return list(variables)
    arrays = {str(name): np.asarray(value) for name, value in variables.items()}
    unknown = sorted(set(state or ()) - arrays.keys())
    if unknown:
        raise ValueError(
            f"state: there is no variable {unknown[0]!r}{did_you_mean(unknown[0], list(arrays))}"
        )
    if state is None:
        _warn_of_state(arrays)
    trained = set(arrays) - set(state or ())
    return [
        (VariableSpec(name, a.shape, str(a.dtype), "trainable" if name in trained else "state"), a)
        for name, a in arrays.items()
    ]


def _compared(variables: Variables) -> str:
    """Return the function of a model; arrays have none."""
    return function_of(variables) if hasattr(variables, "trainable_weights") else ""


def _no_state_beside(state: Collection[str] | None, what: str) -> None:
    if state is not None:
        raise ValueError(f"state: expected none beside {what}")


def _of_model(model: Any) -> list[tuple[VariableSpec, ArrayLike]]:
    # Imported late, because it loads TensorFlow. A caller with a Keras model has loaded it already.
    from psworker.backends.tensorflow.variables import collect
    from psworker.job.errors import JobError

    try:
        found = collect(model)
    except JobError as error:
        raise ValueError(str(error)) from error
    return list(zip(found.specs, found.values(), strict=True))


def _warn_of_state(names: Collection[str]) -> None:
    doubtful = [name for name in names if name.rpartition("/")[2] in _STATE]
    if doubtful:
        log.warning(
            "%s will be trained by the servers' optimizer, and %s like state of a layer: give connect() the Keras "
            "model itself, or say state=[...] ([] where this is meant)",
            *(", ".join(doubtful[:4]), "looks" if len(doubtful) == 1 else "they look"),
            extra=event("state_is_trained"),
        )
