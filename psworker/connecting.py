"""How a training loop joins a job."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pswire.addresses import Address
from pswire.security.credentials import NO_TLS, Credentials
from pswire.security.names import IdentityError, Role
from pswire.security.settings import SecurityOptions, credentials_for
from psworker.control.registration import FIRST, Phase
from psworker.errors import Refused, Untrusted
from psworker.initial_values import Variables, specified
from psworker.local import PLAIN
from psworker.servers import EmbeddedServer, find_servers
from psworker.session import Session
from psworker.work import WorkUnits


def connect(
    hosts: str | Sequence[str | Address] | None = None,
    variables: Variables | None = None,
    *,
    name: str | None = None,
    task_index: int | None = None,
    wire_dtype: str = "float32",
    server_timeout: float = 60.0,
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
    token_file: str | Path | None = None,
    credentials: Credentials | None = None,
    phase: Phase = FIRST,
) -> Session:
    """Join the job on `hosts` ("host:port,host:port", in task order) and open a session.

    Without `hosts` the servers are those of PS_HOSTS or TF_CONFIG. Where these say nothing, one is started on loopback
    for this process alone, with `optimizer` (or its default, sgd), and ends with the session.

    `variables`: a built Keras model, or initial values, by name or with their
    specifications. Of a model, trainable variables are trained, and others
    (BatchNorm's averages) are state: pushed as changes, and no optimizer moves
    them; `psworker.tensorflow.named_variables` has both by name. With values
    by name, `state` names those that are state; a name that looks like state
    and is not said to be any is warned of. The
    first worker of a job installs its values; every other one must name the
    same variables. `name` and `task_index` (which part of the data is ours)
    are chosen by the servers when None. A server that does not answer is
    tried again for `server_timeout` seconds. `transport`: "auto" shares memory
    with the servers of this machine where it is available and `wire_dtype` is
    float32, as all shared memory is, and uses a socket beside gRPC where it
    cannot; "grpc" does neither; "socket" and "shared-memory" raise Refused,
    with the first payload, where there is none.
    `prefetch`: `Session.prefetch` does something.
    `local_rules`: the caller does what the policy wants done between pull and
    push (`Session.local_work`, as `psworker.loop.train` does). Otherwise a policy
    that wants more than gradients refuses the worker.
    `optimizer`: the [optimizer] that these workers expect ({"name": "adam", "learning_rate": 0.001}); a
    server that was started with another one refuses them, one with "from-job" takes it.
    `work`: the data is dealt by the coordinator, for `epochs` epochs: each grant then names a part
    (`Session.unit`). All workers of a job say the same.
    `tls_ca`, `tls_cert`, `tls_key`: PEM files of the authorities that are believed, of this worker's certificate
    and of its key; TLS is spoken then, and nothing else. `token_file`: a token instead of a certificate. Where one is
    None, the environment may have it (PS_TLS_CA, PS_TLS_CERT, PS_TLS_KEY, PS_TOKEN_FILE or PS_TOKEN). `credentials`:
    all of them, made before.
    `phase`: of a process that trains more than once with these servers, see `psworker.control.registration.Phase`.

    Raises Refused (another model, optimizer or job, a local rule), Untrusted (certificates, tokens, or names that
    belong to others), Unreachable, EmbeddedServerError, and ValueError for variables, addresses, a dtype, a transport
    or files that make no sense.
    """
    if variables is None:
        raise TypeError(
            "connect() needs the model, or its variables: connect(hosts, model), or connect(variables=model)"
        )
    specs = specified(variables, state)
    place = find_servers(hosts, os.environ)
    if place is None:
        # Its port is on loopback.
        credentials = NO_TLS
    elif credentials is None:
        credentials = worker_credentials(tls_ca, tls_cert, tls_key, token_file)
    server = None if place is not None else EmbeddedServer(optimizer or {}, "sync", 0, None)
    index = task_index if place is None or task_index is not None else place.task_index
    try:
        session = Session(
            place.hosts if place is not None else (server.address,),  # type: ignore[union-attr]
            specs,
            name,
            index,
            wire_dtype,
            server_timeout,
            transport,
            prefetch,
            optimizer,
            work,
            epochs,
            credentials,
            phase,
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
            "gradients: use ps-worker or psworker.loop.train, or session.local_work() and connect(local_rules=True)"
        )
    return session


def worker_credentials(
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    token_file: str | Path | None = None,
) -> Credentials:
    """As `connect` makes them. Raises Untrusted, ValueError."""
    ca, cert, key, tokens = (
        None if path is None else str(path) for path in (tls_ca, tls_cert, tls_key, token_file)
    )
    try:
        return credentials_for(Role.WORKER, SecurityOptions(ca, cert, key, tokens), os.environ)
    except IdentityError as error:
        raise Untrusted(str(error)) from error
