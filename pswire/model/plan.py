"""The plan: the layout of a model over the servers, balanced by bytes, which every process computes for itself.

Pure and deterministic: the same variables in the same order and the same number of servers give the same plan on every
machine, and its fingerprint proves it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from pswire.model.tables import TableSpec, bucket_range, check_tables
from pswire.model.variables import (
    Kind,
    PlanError,
    VariableSpec,
    check_specs,
    checked_arrays,
    explain_mismatch,
    weights_sha256,
)

Piece = tuple[int, int, int]  # variable, first row, row after the last


def assign(variables: Sequence[tuple[int, int]], servers: int) -> list[list[Piece]]:
    """Return the pieces of each server, in the order of placement.

    `variables` are pairs (rows, elements per row), all >= 1. Uses integers only and breaks ties by position, so the
    result does not depend on the machine.
    """
    total = sum(rows * width for rows, width in variables)
    target = -(-total // servers)
    # If the mean is a few elements, its ceiling may exceed 1.05 of it, but never by a whole row.
    limit = max(target, total * 21 // (20 * servers))
    pieces: list[list[Piece]] = [[] for _ in range(servers)]
    loads = [(0, server) for server in range(servers)]  # a heap; invariant: sum of loads = elements placed
    for number in sorted(range(len(variables)), key=lambda n: (-variables[n][1], -variables[n][0], n)):
        rows, width = variables[number]
        start = 0
        while start < rows:
            load, server = loads[0]
            take = rows - start
            if load + take * width > limit:
                take = max(1, (target - load) // width)
            _append(pieces[server], (number, start, start + take))
            heapreplace(loads, (load + take * width, server))
            start += take
    return pieces


def _append(pieces: list[Piece], new: Piece) -> None:
    """Add a piece, merged with the last one if they adjoin."""
    if pieces and pieces[-1][0] == new[0] and pieces[-1][2] == new[1]:
        new = (new[0], pieces.pop()[1], new[2])
    pieces.append(new)


__all__ = [
    "Kind",
    "Plan",
    "PlanError",
    "ShardLayout",
    "Slice",
    "VariableSpec",
    "explain_mismatch",
    "make_plan",
    "parts_of",
    "weights_sha256",
]

Flat = NDArray[np.float32]

# Part of the fingerprint. Raise it whenever the same variables could be laid out differently.
ALGORITHM: Final = 1
MAX_SERVERS: Final = 4096
#: Servers of a job with replicas at most: all of them vote on who serves each part.
MAX_VOTERS: Final = 7


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, stop) of variable `variable`: `size` elements at element `offset` of a payload."""

    variable: int
    start: int
    stop: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One server's payload: `trainable` elements, then `state` elements, float32 each.

    Invariant: `slices` are contiguous, in the order of the variables within each kind.
    """

    server: int
    slices: tuple[Slice, ...]
    trainable: int
    state: int

    @property
    def elements(self) -> int:
        return self.trainable + self.state

    @property
    def nbytes(self) -> int:
        """Bytes in the arena; fewer on the wire with a smaller dtype."""
        return 4 * self.elements


@dataclass(frozen=True, slots=True)
class Plan:
    """The layout of `variables` and `tables` over `shards`. Equal fingerprints mean equal layouts.

    Payloads and `shards` are of the variables. The rows of tables lie on the servers by `buckets`.
    """

    variables: tuple[VariableSpec, ...]
    shards: tuple[ShardLayout, ...]
    fingerprint: str = field(repr=False)
    tables: tuple[TableSpec, ...] = ()

    def buckets(self, server: int) -> tuple[int, int]:
        """Return the buckets [start, stop) of every table that lie on a server."""
        return bucket_range(server, len(self.shards))

    def scatter(self, arrays: Sequence[ArrayLike]) -> list[Flat]:
        """Return a new flat float32 payload per shard, from one array per variable, in the variables' order.

        Raises PlanError for a wrong number of arrays, a wrong shape, or a dtype that does not cast.
        """
        checked = checked_arrays(self.variables, arrays)
        flats = [np.empty(shard.elements, np.float32) for shard in self.shards]
        # The receiver checks every payload anyway, including for an overflow to infinity.
        with np.errstate(over="ignore"):
            for shard, flat in zip(self.shards, flats, strict=True):
                for piece in shard.slices:
                    rows = np.atleast_1d(checked[piece.variable])[piece.start : piece.stop]
                    into = flat[piece.offset : piece.offset + piece.size].reshape(rows.shape)
                    np.copyto(into, rows, casting="same_kind")
        return flats

    def gather(self, flats: Sequence[NDArray[Any]], dtype: DTypeLike = np.float32) -> list[NDArray[Any]]:
        """Return arrays of `dtype`, in the variables' order, from one flat payload per shard.

        A variable that lies whole in one shard is a view of its payload, without a copy. Raises PlanError for a wrong
        number, length or dtype of payloads.
        """
        self._check_flats(flats, np.dtype(dtype))
        # Every variable has at least one piece, so none stays None.
        arrays: list[NDArray[Any] | None] = [None] * len(self.variables)
        for shard, flat in zip(self.shards, flats, strict=True):
            for piece in shard.slices:
                spec = self.variables[piece.variable]
                values = flat[piece.offset : piece.offset + piece.size]
                if piece.size == spec.size:
                    arrays[piece.variable] = values.reshape(spec.shape)
                    continue
                whole = arrays[piece.variable]
                if whole is None:
                    whole = arrays[piece.variable] = np.empty(spec.shape, dtype)
                whole[piece.start : piece.stop] = values.reshape(-1, *spec.shape[1:])
        return [array for array in arrays if array is not None]

    def gather_trained(self, flats: Sequence[Flat]) -> list[Flat]:
        """Gather the trainable part of each payload; zeros for variables that are not trained."""
        states = [np.zeros(shard.elements - shard.trainable, np.float32) for shard in self.shards]
        return self.gather([np.concatenate(each) for each in zip(flats, states, strict=True)])

    def gather_by_name(self, flats: Sequence[Flat]) -> dict[str, Flat]:
        """Gather arrays by variable name."""
        return {spec.name: array for spec, array in zip(self.variables, self.gather(flats), strict=True)}

    def scatter_by_name(self, arrays: Mapping[str, ArrayLike]) -> list[Flat]:
        """Scatter arrays by variable name; variables without an array are zero.

        Raises PlanError as `scatter`, and ValueError for an unknown name.
        """
        known = {spec.name for spec in self.variables}
        unknown = sorted(set(arrays) - known)
        if unknown:
            raise ValueError(f"no variable is named {unknown[0]!r}; expected some of {sorted(known)}")
        found = (arrays.get(spec.name, np.zeros(spec.shape, np.float32)) for spec in self.variables)
        return self.scatter(list(found))

    def _check_flats(self, flats: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> None:
        if len(flats) != len(self.shards):
            raise PlanError(f"expected {len(self.shards)} payloads, one per server, got {len(flats)}")
        for shard, flat in zip(self.shards, flats, strict=True):
            if flat.dtype != dtype or flat.shape != (shard.elements,):
                got = f"{flat.dtype}{list(flat.shape)}"
                expected = f"{dtype}[{shard.elements}]"
                raise PlanError(f"payload of server {shard.server}: expected {expected}, got {got}")

    def describe(self) -> str:
        """Return a text for people: bytes per server, balance, the largest variables and their servers."""
        total = sum(shard.nbytes for shard in self.shards)
        uneven = max(shard.nbytes for shard in self.shards) * len(self.shards) / total
        title = f"plan {self.fingerprint[:12]}: {_count(len(self.variables), 'variable')}, {_bytes(total)}"
        lines = [f"{title} on {_count(len(self.shards), 'server')}, max/mean {uneven:.3f}"]
        for shard in self.shards:
            state = f", {_bytes(4 * shard.state)} of it state" if shard.state else ""
            pieces = _count(len(shard.slices), "piece")
            lines.append(f"  server {shard.server}: {_bytes(shard.nbytes)} in {pieces}{state}")
        largest = sorted(range(len(self.variables)), key=lambda number: -self.variables[number].size)[:5]
        lines += ["  largest variables:", *(f"    {self._whereabouts(n)}" for n in largest)]
        lines += [f"  table {table}" for table in self.tables]
        return "\n".join(lines)

    def _whereabouts(self, number: int) -> str:
        spec = self.variables[number]
        homes = [
            str(shard.server)
            for shard in self.shards
            if any(piece.variable == number for piece in shard.slices)
        ]
        where = f"{'server' if len(homes) == 1 else 'servers'} {', '.join(homes)}"
        return f"{_bytes(4 * spec.size)}  {spec} on {where}"


def parts_of(servers: int, replicas: int) -> int:
    """Return the number of parts of the model: one for each server, or one for each pair of servers, both of which have
    a copy; an odd last one votes."""
    return servers if replicas == 1 else max(1, servers // replicas)


def make_plan(variables: Sequence[VariableSpec], servers: int, tables: Sequence[TableSpec] = ()) -> Plan:
    """Lay `variables` and `tables` out over `servers` shards.

    Guarantee, with r the bytes of the largest axis-0 row of any variable, and mean the model's bytes / servers, both
    kinds of variables counted::

        largest shard <= max(1.05 * mean, mean + (1 - 1/servers) * r)

    so max/mean <= 1.05 whenever no row exceeds 5% of the mean. A variable stays whole if that leaves its shard within
    1.05 of the mean. With more servers than rows, some shards are empty.

    Raises PlanError for no variables, duplicate names (also of tables), unknown dtypes or kinds, dimensions < 1, more
    than 2**40 elements, servers < 1 or > 4096.
    """
    specs = tuple(variables)
    if not 1 <= servers <= MAX_SERVERS:
        raise PlanError(f"servers: expected a number from 1 to {MAX_SERVERS}, got {servers}")
    check_specs(specs)
    check_tables(tables)
    pieces = assign([(spec.rows, spec.width) for spec in specs], servers)
    shards = tuple(_layout(specs, server, owned) for server, owned in enumerate(pieces))
    return Plan(specs, shards, _fingerprint(specs, servers, tables), tuple(tables))


def _layout(specs: Sequence[VariableSpec], server: int, owned: Sequence[Piece]) -> ShardLayout:
    slices: list[Slice] = []
    elements = {"trainable": 0, "state": 0}
    for kind in elements:
        for variable, start, stop in sorted(owned):
            if specs[variable].kind == kind:
                size = (stop - start) * specs[variable].width
                slices.append(Slice(variable, start, stop, sum(elements.values()), size))
                elements[kind] += size
    return ShardLayout(server, tuple(slices), **elements)


def _fingerprint(specs: Sequence[VariableSpec], servers: int, tables: Sequence[TableSpec]) -> str:
    lines = [json.dumps([spec.name, list(spec.shape), spec.dtype, spec.kind]) for spec in specs]
    lines += [json.dumps(table.to_json(), sort_keys=True) for table in tables]
    return hashlib.sha256("\n".join([f"plan {ALGORITHM} servers {servers}", *lines]).encode()).hexdigest()


def _bytes(count: int) -> str:
    """Format a size, as `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    amount, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if amount >= 1024:
            amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
