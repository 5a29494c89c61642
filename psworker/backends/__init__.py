"""The seam to a framework: what a loop on parameter servers needs of a model, whoever computes its gradients.

`Model` is the protocol. `psworker.backends.torch`, `.jax`, `.numpy` and `.keras` implement it; `psworker.remote` uses
it. Nothing here loads a framework.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pswire.logs.events import event
from pswire.model.plan import Plan, VariableSpec
from pswire.model.tables import Floats, Keys
from psworker.data.payloads import Payload, Pieces, array_of
from psworker.errors import Unsupported

log = logging.getLogger("ps-worker")


class ModelError(Unsupported, ValueError):
    """Servers cannot train this model, or take this gradient; the text names the variable and what to do."""


class DeviceError(Exception):
    """The wanted device is not there, or the framework has been set up otherwise in this process."""


def gpu_number(wanted: str, gpus: int, framework: str) -> int | None:
    """Return the number of the GPU of "auto", "cpu" or "gpu:N", of as many as there are; None for the CPU.

    Raises DeviceError for one that is not there.
    """
    if wanted == "cpu":
        return None
    if wanted == "auto":
        return 0 if gpus else None
    match = re.fullmatch(r"gpu:(\d+)", wanted)
    if match is None:
        raise DeviceError(f"a device is 'auto', 'cpu' or 'gpu:N' (N from 0), got {wanted!r}")
    index = int(match[1])
    if index >= gpus:
        there = ", ".join(["cpu", *(f"gpu:{n}" for n in range(gpus))])
        raise DeviceError(f"there is no {wanted!r}: {framework} sees {there}")
    return index


@dataclass(frozen=True)
class StepResult:
    """The parts of one contribution."""

    payloads: list[Payload]  # per shard: [gradient | state delta]
    loss: float  # mean over the batches, regularisation included
    norm: float  # L2 norm of the gradient over all shards, before rounding; 0 where it was not asked for
    samples: int
    logs: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the last batch, as Keras' `train_step` returns them
    rows: dict[str, tuple[Keys, Floats]] = field(default_factory=dict)  # gradients by table: keys, [n, dim]

    @property
    def flats(self) -> list[NDArray[Any]]:
        """The payloads as arrays, not to be written."""
        return [array_of(payload) for payload in self.payloads]


# Waits for a copy from a device, and returns it. For any thread, more than once.
Landing = Callable[[], NDArray[Any]]


class Model(Protocol):
    """The variables of a model that travel, in the order of `specs`: trained ones first, then state."""

    backend: str

    @property
    def specs(self) -> Sequence[VariableSpec]:
        """The specification of each variable."""

    @property
    def device(self) -> str:
        """Where it computes, in the framework's words; several devices, with commas between them."""

    def values(self) -> Sequence[NDArray[Any]]:
        """Present values, on the host, one array per variable."""

    def put(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Take a version up: one array per variable, float32 or a wire dtype, good for the time of this call only."""

    def changes(self) -> Sequence[Any]:
        """How much each state variable has changed since `put`, as arrays of the framework."""

    def fetch(self, value: Any, start: int, stop: int, dtype: np.dtype[Any]) -> Landing:
        """Begin to bring rows from `start` to `stop` of a gradient or a change (of a scalar: all of it) to the host,
        rounded to `dtype` on the device, flat; without a copy where the framework's memory is the host's."""


def computes(backend: str, device: str) -> str:
    """Describe a worker's computation, as it reports it when it joins: "jax on cpu:0"."""
    return f"{backend} on {device}"[:128]


def log_backend(worker: str, model: Model) -> None:
    """Say what a worker that has joined computes with."""
    log.info(
        "%s computes with %s on %s",
        *(worker, model.backend, model.device),
        extra=event("backend", backend=model.backend, device=model.device),
    )


def cut(plan: Plan, flats: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """One array per variable, of one payload per server: views, but for a variable that lies on several servers."""
    if len({flat.dtype for flat in flats}) > 1:
        flats = [flat.astype(np.float32, copy=False) for flat in flats]
    return plan.gather(flats, flats[0].dtype)


def places(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """Per variable, where its elements lie: (server, start, stop) in that server's payload, in row order."""
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in plan.variables]
    for number, shard in enumerate(plan.shards):
        for piece in shard.slices:
            found[piece.variable].append((piece.start, number, piece.offset, piece.offset + piece.size))
    return [[(server, start, stop) for _, server, start, stop in sorted(pieces)] for pieces in found]


def payloads(plan: Plan, model: Model, values: Sequence[Any], dtype: DTypeLike) -> list[Payload]:
    """One payload per server, of a gradient or change per variable. What lies on a device begins to leave it now, all
    of it, and is awaited part by part in the thread that sends to that server.

    Raises ModelError for another shape.
    """
    kind = np.dtype(dtype)
    for spec, value in zip(plan.variables, values, strict=True):
        if tuple(value.shape) != spec.shape:
            raise ModelError(
                f"the gradient of {spec.name!r}: expected the shape {list(spec.shape)}, got {list(value.shape)}"
            )
    made: list[Payload] = []
    for shard in plan.shards:
        parts = [model.fetch(values[each.variable], each.start, each.stop, kind) for each in shard.slices]
        made.append(Pieces(parts, shard.elements, kind))
    return made


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
