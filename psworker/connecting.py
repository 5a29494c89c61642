"""How a training loop joins a job: the servers, the variables, the credentials."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from pswire.logs.events import event
from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec
from pswire.nearest import did_you_mean
from psworker.connection import Connection, Hosts, Where
from psworker.errors import Refused
from psworker.link import Link
from psworker.local import PLAIN
from psworker.session import Session
from psworker.work import WorkUnits

log = logging.getLogger("ps-worker")

# Initial values by name, or with the specifications of the variables; or a Keras model.
Variables = Mapping[str, ArrayLike] | Sequence[tuple[VariableSpec, ArrayLike]] | Any
# The ends of Keras' names for what layers keep beside their weights.
_STATE = ("moving_mean", "moving_variance", "moving_norm")


def connect(
    hosts: Hosts = None,
    variables: Variables | None = None,
    *,
    prefetch: bool = False,
    local_rules: bool = False,
    optimizer: Mapping[str, Any] | None = None,
    state: Collection[str] | None = None,
    work: WorkUnits | None = None,
    epochs: int = 1,
    computes: str = "",
    tables: Sequence[TableSpec] = (),
    **where: Unpack[Where],
) -> Session:
    """Join the job on `hosts` ("host:port,host:port", in task order) and open a session.

    Without `hosts`, PS_HOSTS or TF_CONFIG name the servers. If neither is set, this starts one on loopback for this
    process alone, with `optimizer` (sgd by default), which ends with the session. `where`: what every entry takes, see
    `psworker.connection.Where`.

    `variables`: a built Keras model, or initial values, by name or with their specifications. Of a model, trainable
    variables are trained and others (BatchNorm's averages) are state: changes are pushed, and no optimizer moves them;
    `psworker.keras.named_variables` has both by name. With values by name, `state` names the state; a warning
    names variables that look like state and are not listed. The first worker of a job installs its values; all others
    must name the same variables.
    `prefetch`: fetch the next version while a turn is computed, if the policy grants ahead; in `turns` with `rows`, no
    version is fetched so.
    `local_rules`: the loop is `psworker.train`, which does what the policy wants done between pull and push.
    Otherwise a policy that wants more than gradients refuses the worker.
    `optimizer`: the [optimizer] that this worker expects ({"name": "adam", "learning_rate": 0.001}). A server with
    another one refuses the worker; one that was started with "from-job" adopts it.
    `work`: the coordinator deals the data, for `epochs` epochs, and `Session.turns` takes a function of a unit. All
    workers of a job give the same.
    `computes`: what this worker computes with ("torch on cuda:0", at most 128 characters), for log, status and
    dashboard.
    `tables`: sparse tables beside the variables; all workers name the same. Their rows come into being on the servers,
    when a gradient for them is applied.

    Raises Refused (another model, optimizer or job, or a local rule), Unreachable, EmbeddedServerError, ValueError for
    variables that make no sense, and what `Connection.resolve` raises.
    """
    if variables is None:
        raise ValueError(
            "connect() needs the model, or its variables: connect(hosts, model), or connect(variables=model)"
        )
    specs, connection = specified(variables, state), Connection.resolve(hosts, **where)
    link = open_link(
        connection,
        specs,
        local_rules=local_rules,
        prefetch=prefetch,
        optimizer=optimizer,
        work=work,
        epochs=epochs,
        computes=computes,
        tables=tables,
    )
    return Session(link)


def open_link(
    connection: Connection,
    specs: Sequence[tuple[VariableSpec, ArrayLike]],
    *,
    optimizer: Mapping[str, Any] | None = None,
    local_rules: bool = False,
    **more: Any,
) -> Link:
    """Open a link, and start a server for it if there is none, which ends with it. `more`: as for `Link`.

    Raises Refused for a local rule without `local_rules`, and as `connect`.
    """
    server = connection.own.start(optimizer or {}) if connection.own is not None else None
    try:
        at = connection if server is None else connection.at(server)
        link = Link(at, specs, optimizer=optimizer, **more)
    except BaseException:
        if server is not None:
            server.end()
        raise
    if server is not None:
        link.at_close(server.close, server.end)
    rule = link.info.local_rule
    if rule != PLAIN and not local_rules:
        link.close(f"does not know the local rule {rule}")
        raise Refused(
            f"this job's policy asks its workers for the local rule {rule!r}, and this training loop pushes plain "
            "gradients: use ps-worker, or psworker.train and connect(local_rules=True)"
        )
    return link


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


def _no_state_beside(state: Collection[str] | None, what: str) -> None:
    if state is not None:
        raise ValueError(f"state: expected none beside {what}")


def _of_model(model: Any) -> list[tuple[VariableSpec, ArrayLike]]:
    # Imported late, because it loads Keras. A caller with a Keras model has loaded it already.
    from psworker.backends.keras.variables import collect

    found = collect(model)
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
