"""The seam to a framework: what a loop on parameter servers needs of a model, whoever computes its gradients.

`Model` is the protocol. `psworker.backends.torch`, `.jax` and `.numpy` implement it, and `psworker.keras.remote` does
for Keras models on TensorFlow; `psworker.remote` uses it. Nothing here loads a framework.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pswire.logs.events import event
from pswire.model.plan import Plan, VariableSpec
from psworker.data.payloads import Payload, Pieces, array_of
from psworker.errors import Unsupported

log = logging.getLogger("ps-worker")


class ModelError(Unsupported, ValueError):
    """Servers cannot train this model, or take this gradient; the text names the variable and what to do."""


@dataclass(frozen=True)
class StepResult:
    """What one contribution is made of."""

    payloads: list[Payload]  # per shard: [gradient | state delta]
    loss: float  # mean over the batches, regularisation included
    norm: float  # L2 norm of the gradient over all shards, before rounding; 0 where it was not asked for
    samples: int
    logs: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the last batch, as Keras' `train_step` returns them

    @property
    def flats(self) -> list[NDArray[Any]]:
        """The payloads as arrays, not to be written."""
        return [array_of(payload) for payload in self.payloads]


def log_backend(worker: str, backend: str, device: str) -> None:
    """Say what a worker that has joined computes with."""
    log.info(
        "%s computes with %s on %s",
        *(worker, backend, device),
        extra=event("backend", backend=backend, device=device),
    )


class Model(Protocol):
    """The variables of a model that travel, in the order of `specs`: trained ones first, then state."""

    backend: str

    @property
    def specs(self) -> Sequence[VariableSpec]:
        """What each variable is."""

    @property
    def device(self) -> str:
        """Where it computes, in the framework's words; several devices, with commas between them."""

    def values(self) -> Sequence[NDArray[Any]]:
        """Present values, on the host, one array per variable."""

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Take a version up: one array per variable, float32 or a wire dtype, good for the time of this call only."""

    def changes(self) -> Sequence[Any]:
        """How much each state variable has changed since `put`, as arrays of the framework."""

    def host(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rows from `start` to `stop` of a gradient or a change (of a scalar: all of it), rounded to `dtype` on the
        device, flat, on the host; without a copy where the framework's memory is the host's. For any thread."""


def cut(plan: Plan, flats: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """One array per variable, of one payload per server: views, but for a variable that lies on several servers."""
    if len({flat.dtype for flat in flats}) > 1:
        flats = [flat.astype(np.float32, copy=False) for flat in flats]
    return plan.gather(flats, flats[0].dtype)


def payloads(plan: Plan, model: Model, values: Sequence[Any], dtype: DTypeLike) -> list[Payload]:
    """One payload per server, of a gradient or change per variable: made in the thread that sends to that server.

    Raises ModelError for another shape.
    """
    kind = np.dtype(dtype)
    for spec, value in zip(plan.variables, values, strict=True):
        if tuple(value.shape) != spec.shape:
            raise ModelError(
                f"the gradient of {spec.name!r}: expected the shape {list(spec.shape)}, got {list(value.shape)}"
            )
    return [
        Pieces(
            [
                partial(model.host, values[piece.variable], piece.start, piece.stop, kind)
                for piece in shard.slices
            ],
            shard.elements,
            kind,
        )
        for shard in plan.shards
    ]


# Elements from which a copy costs more than handing over one more array (some 10 us).
APART = 2**18


def neighbours(sizes: Sequence[int]) -> list[list[int]]:
    """Group the parts of a payload, by number: each large one alone, small ones with their neighbours.

    Parts of a group are joined on the device; a large one stays as it is, for to join it would be a copy.
    """
    groups: list[list[int]] = []
    joins = False
    for place, size in enumerate(sizes):
        small = size < APART
        if small and joins:
            groups[-1].append(place)
        else:
            groups.append([place])
        joins = small
    return groups
