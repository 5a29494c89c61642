"""`distribute`: from now on a compiled model's `fit` trains on parameter servers."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from pswire.addresses import Address
from pswire.security.credentials import NO_TLS
from psworker.backends.keras import FitError, backend
from psworker.connecting import connect, worker_credentials
from psworker.keras.fit.distributed import Distributed
from psworker.keras.fit.membership import Membership
from psworker.servers import EmbeddedServer, find_servers


def distribute(
    model: Any,
    hosts: str | Sequence[Address] | None = None,
    *,
    policy: str | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    task_index: int | None = None,
    wire_dtype: str | None = None,
    transport: str | None = None,
    server_timeout: float = 60.0,
    stay: bool | None = None,
    sharding: str = "none",
    metrics: str = "all",
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    token_file: str | Path | None = None,
) -> Distributed:
    """From now on `model.fit` trains on parameter servers; call it after `model.compile`.

    `hosts` ("host:port,...", in task order) are running servers, whose job
    this worker joins; else those of PS_HOSTS or TF_CONFIG. Where nothing says
    where servers are, one is started on loopback, for this process alone, at
    the first batch: with `policy` ("sync" by default), `seed` (0) and, if `out`
    is given, a run folder there. Servers that run already have their own: with
    them the three are refused. `name`, `task_index`, `wire_dtype` ("float32" by
    default), `transport` ("auto") and `server_timeout` are those of
    `psworker.connect`; a run that started this process may have said the
    defaults (PS_TASK_INDEX, PS_WIRE_DTYPE, PS_TRANSPORT).

    `stay`: the job stays open after `fit`, for another one; `close` ends it.
    The default for a server of one's own. On a cluster the end of `fit` is by
    default the end of this worker's part: it waits for the others, and the
    model then has the job's last version.

    `sharding="units"`: every worker gives `fit` the same whole data, arrays or a PyDataset, and the coordinator deals
    it: each batch counts once per epoch over all workers, also when workers join, leave, die and differ in speed.
    "auto": of the same whole data (arrays, PyDataset, tf.data.Dataset) each worker trains on every n-th sample or
    batch. "none", the default: each worker trains on what its script gives it, for a script may have cut it; a warning
    says so where all were given the same. A server of one's own has nobody to share with.

    `metrics="all"`: the logs and history of an epoch are over all workers, and worker 0 validates for all; therefore
    each waits at the end of its epoch for the others, under any policy. "own": nobody waits; each worker's logs are
    its own, and each validates.

    `tls_ca`, `tls_cert`, `tls_key` and `token_file` are those of `psworker.connect`, as PS_TLS_CA and the others of the
    environment; a server of one's own, on loopback, needs none.

    Raises TranslationError for an optimizer that servers do not have,
    FitError for a model that is not compiled or cannot be trained so,
    Untrusted for certificates that are not good, AddressError and ValueError
    for addresses that make no sense and arguments that do not go together.
    """
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise FitError(
            "distribute() takes a compiled Keras model: call model.compile(optimizer=..., loss=...) before"
        )
    if sharding not in ("none", "auto", "units"):
        raise ValueError(f'sharding: expected "none", "auto" or "units", got {sharding!r}')
    if metrics not in ("all", "own"):
        raise ValueError(f'metrics: expected "all" or "own", got {metrics!r}')
    place = find_servers(hosts, os.environ, policy=policy, seed=seed, out=out)
    _check_model(model, alone=place is None)
    credentials = NO_TLS if place is None else worker_credentials(tls_ca, tls_cert, tls_key, token_file)
    if sharding == "units" and place is not None and stay:
        raise ValueError('sharding="units" is for one fit per job: expected stay=False')
    # What `distribute` has put in the place of Keras' own.
    before = getattr(model.__dict__.get("fit"), "__self__", None)
    if isinstance(before, Distributed):
        before.replace()
    own = None
    if place is None:
        # The optimizer comes with the first batch, which may build the model.
        own = functools.partial(EmbeddedServer, {"name": "from-job"}, policy or "sync", seed or 0, _path(out))
    wire_dtype = wire_dtype or (place.wire_dtype if place is not None else "") or "float32"
    transport = transport or (place.transport if place is not None else "") or "auto"
    if place is not None and task_index is None:
        task_index = place.task_index
    join = functools.partial(
        connect,
        name=name,
        task_index=task_index,
        wire_dtype=wire_dtype,
        server_timeout=server_timeout,
        transport=transport,
        credentials=credentials,
    )
    membership = Membership(place, own, join, task_index)
    try:
        return Distributed(
            model,
            membership,
            wire_dtype,
            stay=place is None if stay is None else stay,
            deals=sharding == "units" and place is not None,
            cuts=sharding == "auto" and place is not None,
            shares=metrics == "all",
        )
    except BaseException:
        membership.close()
        raise


def _check_model(model: Any, *, alone: bool) -> None:
    """Raises FitError for what would have no effect, or fail in the first batch. `alone`: a server of its own."""
    for name, value in vars(model).items():
        if name.startswith("_"):
            continue
        held = value.values() if isinstance(value, Mapping) else value
        several = list(held) if isinstance(held, Iterable) and not isinstance(held, str | bytes) else [held]
        if any(isinstance(one, keras.optimizers.Optimizer) and one is not model.optimizer for one in several):
            raise FitError(
                f"model.{name} holds another optimizer than model.optimizer, and the servers of a job run one: put a "
                "psworker.keras.RemoteOptimizer, with servers of its own, in the place of each (examples/fit_gan.py "
                "shows it), or train all variables with model.optimizer"
            )
    refused = backend().refuse(model)
    if refused is not None:
        raise FitError(refused)
    for layer in model._flatten_layers():
        if not alone and getattr(layer, "synchronized", False):
            raise FitError(
                f"layer {layer.name!r} has synchronized=True, which needs the activations of all workers in each step, "
                "and workers exchange gradients: expected synchronized=False, with which each worker normalizes its "
                "own batch and all share the moving averages, or another layer, such as GroupNormalization"
            )


def _path(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)
