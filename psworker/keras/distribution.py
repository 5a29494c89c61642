"""`distribute`: lets a compiled model's `fit` train on parameter servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import keras

from psworker.backends.keras.step import FitError, backend
from psworker.connection import Connection, Hosts, Where
from psworker.keras.fit.distributed import Distributed
from psworker.keras.fit.membership import FitMembership


def distribute(
    model: Any,
    hosts: Hosts = None,
    *,
    stay: bool | None = None,
    sharding: str = "none",
    metrics: str = "all",
    **where: Unpack[Where],
) -> Distributed:
    """Let `model.fit` train on parameter servers from now on. Call it after `model.compile`, on any of Keras' backends.

    `hosts` ("host:port,...", in task order) are running servers, whose job this worker joins; by default those of
    PS_HOSTS or TF_CONFIG. If none of these names servers, the first batch starts one on loopback, for this process
    alone. `where`: what every entry takes, see `psworker.connection.Where`.

    `stay`: keep the job open after `fit`, for another one, until `close`; the default with a server of its own. On a
    cluster the end of `fit` is by default the end of this worker's part: it waits for the others, and the model then
    has the job's last version.

    `sharding="auto"`: every worker passes the same whole data to `fit`, arrays, a PyDataset or a tf.data.Dataset, and
    trains on every n-th sample or batch of it. "none", the default: each worker trains on what its script passes; a
    warning says so where all pass the same.

    `metrics="all"`: the logs and history of an epoch cover all workers, and worker 0 validates for all; therefore each
    waits at the end of its epoch for the others, under any policy. "own": nobody waits; each worker's logs are its own,
    and each validates.

    Raises TranslationError for an optimizer that servers do not have, FitError for a model that is not compiled or
    cannot be trained so, Untrusted for bad certificates, AddressError and ValueError for bad addresses and arguments
    that contradict each other.
    """
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        if not isinstance(model, keras.Model) and any(
            each.__module__.startswith("torch.") for each in type(model).__mro__
        ):
            raise FitError(
                f"expected a compiled Keras model, got the torch.nn.Module {type(model).__name__}: its loop takes "
                "psworker.torch.distribute(optimizer, model)"
            )
        raise FitError(
            "distribute() takes a compiled Keras model: call model.compile(optimizer=..., loss=...) before"
        )
    if sharding not in ("none", "auto"):
        raise ValueError(f'sharding: expected "none" or "auto", got {sharding!r}')
    if metrics not in ("all", "own"):
        raise ValueError(f'metrics: expected "all" or "own", got {metrics!r}')
    connection = Connection.resolve(hosts, **where)
    alone = connection.own is not None
    _check_model(model, alone=alone)
    # An earlier `distribute` of this model.
    before = getattr(model.__dict__.get("fit"), "__self__", None)
    if isinstance(before, Distributed):
        before.replace()
    membership = FitMembership(connection)
    try:
        return Distributed(
            model,
            membership,
            stay=alone if stay is None else stay,
            cuts=sharding == "auto" and not alone,
            shares=metrics == "all",
        )
    except BaseException:
        membership.close()
        raise


def _check_model(model: Any, *, alone: bool) -> None:
    """Raise FitError for what would have no effect, or fail in the first batch. `alone`: with a server of its own."""
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
