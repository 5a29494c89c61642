"""The states of a job's shards, divided among another number of servers.

Arrays of a payload or of its trainable part are joined by variables and rows as the old plan lays them out, and cut as
the new plan does. Every operation of a shard is elementwise, or was refused on more than one server when the job began
(`TensorParts.check_servers`), so the new shards continue with the same bits.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.records import StateError
from psserver.shard.mixing import BASE
from psserver.shard.staging import OpenTicket
from psserver.shard.state import ShardFacts, ShardState
from psserver.shard.tables import TABLE_KINDS
from psserver.shard.tables.group import divided
from pswire.model.plan import Plan

Floats = NDArray[np.float32]


def reshard(states: Sequence[ShardState], old: Plan, new: Plan) -> list[ShardState]:
    """Return states for the shards of `new`, from those of all shards of `old`, in the order of the servers.

    All states must be of one moment of the log. Servers may differ in what they have received or released; the result
    has what all of them have: a payload counts if every server has it (each committed one does), and a version that any
    server has released is released, with the holds on it: its readers ask for a new grant. Raises StateError for
    states of different moments, of other variables, or not of `old`.
    """
    _check(states, old, new)
    shared = set.intersection(*(set(state.arrays) for state in states))
    facts = _common(states, shared)
    needed = {facts.version, *dict(facts.holds).values()}
    shared -= {
        name for name in shared if name.startswith("version/") and int(name.split("/")[1]) not in needed
    }
    arrays: list[dict[str, NDArray[Any]]] = [{} for _ in new.shards]
    for name in states[0].arrays:
        if name not in shared or name.startswith(f"{BASE}/"):
            continue
        if name.split("/")[0] in TABLE_KINDS:
            pieces = divided([state.arrays for state in states], name, len(new.shards))
        else:
            pieces = _divided([state.arrays[name] for state in states], name, old, new)
        for into, piece in zip(arrays, pieces, strict=True):
            into[name] = piece
    for into, bases in zip(arrays, _bases(states, facts.version, old, new), strict=True):
        into.update(bases)
    return [
        ShardState(replace(facts, plan=new.fingerprint, server=server), into)
        for server, into in enumerate(arrays)
    ]


def _bases(states: Sequence[ShardState], newest: int, old: Plan, new: Plan) -> list[dict[str, Floats]]:
    """Return the state that open tickets started from, as it lies on the servers of `new`. A server keeps only what has
    changed since, the rest is in the newest version."""
    names = {name for state in states for name in state.arrays if name.startswith(f"{BASE}/")}
    found: list[dict[str, Floats]] = [{} for _ in new.shards]
    for version in {name.split("/")[1] for name in names}:
        flats = [state.arrays[f"version/{newest}"].copy() for state in states]
        for state, layout, flat in zip(states, old.shards, flats, strict=True):
            for piece in layout.slices:
                values = state.arrays.get(f"{BASE}/{version}/{piece.variable}")
                if values is not None:
                    flat[piece.offset : piece.offset + piece.size] = values
        for into, layout, flat in zip(found, new.shards, new.scatter(old.gather(flats)), strict=True):
            for piece in layout.slices:
                if (name := f"{BASE}/{version}/{piece.variable}") in names:
                    into[name] = flat[piece.offset : piece.offset + piece.size]
    return found


def _check(states: Sequence[ShardState], old: Plan, new: Plan) -> None:
    if (old.variables, old.tables) != (new.variables, new.tables):
        raise StateError("reshard: the two plans are of other variables")
    if len(states) != len(old.shards):
        raise StateError(f"reshard: expected the states of {len(old.shards)} servers, got {len(states)}")
    for server, state in enumerate(states):
        if (state.facts.plan, state.facts.server) != (old.fingerprint, server):
            raise StateError(
                f"reshard: expected server {server} of plan {old.fingerprint}, got server "
                f"{state.facts.server} of plan {state.facts.plan}"
            )
        if _moment(state.facts) != _moment(states[0].facts):
            raise StateError(f"reshard: servers 0 and {server} are not at the same entry of the log")


def _moment(facts: ShardFacts) -> object:
    """Return the facts that are equal on all servers that have executed the same entries."""
    return (
        *(facts.optimizer, facts.tensors, facts.version, facts.members, facts.tickets),
        *(facts.factors, facts.pending, facts.row_factors),
    )


def _common(states: Sequence[ShardState], shared: set[str]) -> ShardFacts:
    """Return the common facts. A hold that any server still has lasts while every server has its version."""
    holds = {ticket: version for state in states for ticket, version in state.facts.holds}
    kept = [(ticket, version) for ticket, version in holds.items() if f"version/{version}" in shared]
    tickets: list[OpenTicket] = [replace(ticket) for ticket in states[0].facts.tickets]
    return replace(states[0].facts, holds=kept, tickets=tickets)


def _divided(arrays: Sequence[Floats], name: str, old: Plan, new: Plan) -> list[Floats]:
    kind = name.split("/")[0]
    if kind == "constant":
        return [arrays[0].copy() for _ in new.shards]
    if kind in ("slot", "memory"):
        whole = [
            np.concatenate([array, np.zeros(shard.state, np.float32)])
            for array, shard in zip(arrays, old.shards, strict=True)
        ]
        cut = new.scatter(old.gather(whole))
        return [piece[: shard.trainable] for piece, shard in zip(cut, new.shards, strict=True)]
    return new.scatter(old.gather(arrays))
