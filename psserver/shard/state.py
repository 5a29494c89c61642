"""Everything a shard holds, as named arrays and plain data: saved, checked and restored.

Names of arrays (float32 each), where n is the number of elements of a payload and m that of its trainable part:

    version/<number>      (n,)  a published version that is the newest, or that a ticket holds
    exact/<codec>         (n,)  the optimizer's weights, if versions are made of changes by that codec
    payload/<ticket>      (n,)  a complete payload of an open or committed ticket
    update/<k>            (n,)  the coming update: one sum, or contributions in the order of the log
    slot/<name>           (m,)  a slot of the optimizer
    memory/<name>         (m,)  memory of the compensator, one number per weight
    constant/<name>        any  memory of the compensator that is the same on every server
    base/<version>/<k>    (s,)  state that has changed since the version that an open ticket started from: of variable
                                number k of the plan, its s elements here

An array of (n,) or (m,) is cut as `Plan` cuts variables: see `psserver.shard.resharding`. Rows of tables have the names
of `psserver.shard.tables.group`, and other dtypes, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.optimizers import Optimizer
from psserver.optimizers.blocks import pieces
from psserver.policies import TensorParts
from psserver.records import StateError, from_plain, to_plain
from psserver.shard.accumulator import Added
from psserver.shard.arena import Arena
from psserver.shard.deltas import DeltaStream
from psserver.shard.holds import Holds
from psserver.shard.mixing import BASE, StateBases
from psserver.shard.staging import OpenTicket, Staging
from psserver.shard.tables import TABLE_KINDS, Tables
from psserver.shard.tables.group import named
from psserver.shard.updater import Updater
from pswire.model.plan import Plan, ShardLayout

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ShardParts:
    """The parts of a shard."""

    plan: Plan
    layout: ShardLayout
    optimizer: Optimizer
    tensors: TensorParts
    # Changed in place.
    members: dict[str, int]
    arena: Arena
    holds: Holds
    row_holds: Holds
    staging: Staging
    updater: Updater
    stream: DeltaStream | None
    tables: Tables
    bases: StateBases


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """The part of a state that is not arrays: JSON-able.

    `plan`: its fingerprint. `optimizer`, `tensors`: their configurations. `version`: the newest; -1 before the first.
    `members`: (worker, incarnation). `holds`: (ticket, version). `factors`, `pending`: of the coming update, as in
    `Added`.
    """

    plan: str
    server: int
    optimizer: dict[str, object]
    tensors: dict[str, object]
    version: int
    members: list[tuple[str, int]]
    tickets: list[OpenTicket]
    holds: list[tuple[int, int]]
    factors: list[float]
    pending: float
    # Of each contribution to the coming update that has rows.
    row_factors: list[float]


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of a shard. `arrays`: by the names above."""

    facts: ShardFacts
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(values.nbytes for values in self.arrays.values())

    @property
    def deltas(self) -> str:
        """The name of the codec of changes by which versions travel; empty without one."""
        return next((name.removeprefix("exact/") for name in self.arrays if name.startswith("exact/")), "")

    def to_json(self) -> dict[str, object]:
        """Return everything but the arrays."""
        plain: dict[str, object] = to_plain(self.facts)
        return plain

    @classmethod
    def from_json(cls, data: object, arrays: Mapping[str, NDArray[Any]]) -> "ShardState":
        """Raise StateError for missing or unknown fields, values of another type, and numbers that are not finite."""
        for name, values in arrays.items():
            flat = values.reshape(-1)
            # In numpy: whoever reads a checkpoint compiles nothing for it.
            if values.dtype == np.float32 and not all(np.isfinite(flat[p]).all() for p in pieces(flat.size)):
                place = int(np.argmin(np.isfinite(flat)))
                raise StateError(f"shard state: {name}: element {place} is {flat[place]}")
        return cls(from_plain(ShardFacts, data, "shard state"), arrays)

    def numbered(self, kind: str) -> dict[int, Floats]:
        """Return the arrays of "version", "payload" or "update", by number."""
        named = (name.split("/") for name in self.arrays if name.startswith(f"{kind}/"))
        return {int(number): self.arrays[f"{kind}/{number}"] for _, number in named}


def save(shard: ShardParts) -> ShardState:
    """Return everything the shard holds but the rows of tables (`Tables.rows_saved`), without a copy.

    The next order that writes changes the arrays.
    """
    held = shard.holds.state()
    tickets, payloads, rows = shard.staging.state()
    updater = shard.updater
    added = updater.accumulator.state()
    constants = updater.constants
    views = {
        **{f"version/{number}": values for number, values in shard.arena.state().items()},
        **({} if shard.stream is None else {_exact(shard.stream): shard.stream.exact}),
        **{f"payload/{ticket}": values for ticket, values in payloads.items()},
        **{f"update/{k}": values for k, values in enumerate(added.payloads)},
        **{f"slot/{name}": values for name, values in updater.slots.items()},
        **{
            f"{'constant' if name in constants else 'memory'}/{name}": values
            for name, values in updater.memory.items()
        },
        **shard.bases.state(_started(tickets)),
        **shard.tables.added_rows(),
        **shard.tables.undo(dict(held)),
        **{
            name: array
            for ticket, each in rows.items()
            for name, array in named(f"rows/{ticket}", each).items()
        },
    }
    facts = ShardFacts(
        shard.plan.fingerprint,
        shard.layout.server,
        to_plain(shard.optimizer.config),
        to_plain(shard.tensors.config),
        shard.arena.newest,
        list(shard.members.items()),
        tickets,
        held,
        added.factors,
        added.pending,
        shard.tables.factors,
    )
    return ShardState(facts, views)


def _started(tickets: Iterable[OpenTicket]) -> set[int]:
    return {ticket.version for ticket in tickets if not ticket.initialise}


def _exact(stream: DeltaStream) -> str:
    return f"exact/{stream.codec.name}"


def copied(state: ShardState, spare: Sequence[Floats] = (), piece: int = 1 << 22) -> ShardState:
    """Copy the arrays as they are now, `piece` elements at a time, so that other threads get a turn.

    `spare`: float32 arrays to reuse where their sizes match. Fresh memory, which the system has to find and fill with
    zeros, takes many times as long as the copy. Rows of payloads are not copied: nobody writes to them.
    """
    left: dict[int, list[Floats]] = {}
    for each in spare:
        left.setdefault(each.size, []).append(each)
    arrays: dict[str, NDArray[Any]] = {}
    for name, values in state.arrays.items():
        if name.split("/")[0] in TABLE_KINDS:
            arrays[name] = values
            continue
        found = left.get(values.size)
        flat, out = (
            values.reshape(-1),
            found.pop().reshape(-1) if found else np.empty(values.size, np.float32),
        )
        for start in range(0, flat.size, piece):
            out[start : start + piece] = flat[start : start + piece]
        arrays[name] = out.reshape(values.shape)
    return ShardState(state.facts, arrays)


def check(state: ShardState, shard: ShardParts) -> None:
    """Raise StateError if that new shard cannot be restored from the state."""
    if shard.arena.newest >= 0 or shard.staging.tickets:
        raise StateError(f"expected a new shard, this one is at version {shard.arena.newest}")
    _check_kind(state.facts, shard)
    _check_facts(state.facts, state, shard)
    _check_arrays(state, shard)
    try:
        shard.updater.accumulator.check(_added(state))
    except ValueError as error:
        raise StateError(f"shard state: the coming update: {error}") from error


def _added(state: ShardState) -> Added:
    """Return the coming update, without a copy."""
    payloads, facts = state.numbered("update"), state.facts
    return Added([values for _, values in sorted(payloads.items())], facts.factors, facts.pending)


def take_up(state: ShardState, shard: ShardParts) -> None:
    """Restore a new shard from the state. Raises StateError, with nothing changed."""
    facts, updater = state.facts, shard.updater
    check(state, shard)
    # From here on, only memory can run out.
    added = _added(state)
    updater.accumulator.restore(replace(added, payloads=[values.copy() for values in added.payloads]))
    shard.members.update(facts.members)
    shard.arena.restore(state.numbered("version"))
    if shard.stream is not None:
        shard.stream.begin(state.arrays[_exact(shard.stream)])
    staged = {int(name.split("/")[1]) for name in state.arrays if name.startswith("rows/")}
    rows = {ticket: shard.tables.rows_named(f"rows/{ticket}", state.arrays) for ticket in staged}
    shard.staging.restore(facts.tickets, state.numbered("payload"), rows)
    shard.bases.restore(state.arrays)
    shard.tables.restore(state.arrays, facts.row_factors, facts.version, dict(facts.holds))
    shard.holds.restore(dict(facts.holds))
    if shard.tables and shard.tensors.keep_bases:
        shard.row_holds.restore(dict(facts.holds))
    for name, values in updater.slots.items():
        values[...] = state.arrays[f"slot/{name}"]
    for name, values in updater.memory.items():
        kind = "constant" if name in updater.constants else "memory"
        values[...] = state.arrays[f"{kind}/{name}"]


def _check_kind(facts: ShardFacts, shard: ShardParts) -> None:
    """Check that the state is of this kind of shard."""
    for what, expected, got in (
        ("plan", shard.plan.fingerprint, facts.plan),
        ("server", shard.layout.server, facts.server),
        ("optimizer", to_plain(shard.optimizer.config), facts.optimizer),
        ("tensors", to_plain(shard.tensors.config), facts.tensors),
    ):
        if expected != got:
            hint = "; for another number of servers use reshard()" if what == "plan" else ""
            raise StateError(f"shard state: expected the {what} {expected!r}, got {got!r}{hint}")


def _check_facts(facts: ShardFacts, state: ShardState, shard: ShardParts) -> None:
    """Check that the facts agree with each other and with the arrays."""
    versions, payloads = _numbers(state, "version"), _numbers(state, "payload")
    opened = {ticket.ticket for ticket in facts.tickets}
    for holds, what in (
        (facts.version == max(versions, default=-1), "its newest version is not among its arrays"),
        (versions >= {number for _, number in facts.holds}, "a version that a ticket needs is missing"),
        (opened >= {ticket for ticket, _ in facts.holds}, "a version is kept for a ticket that is not open"),
        (
            versions <= {facts.version, *(number for _, number in facts.holds)},
            "a version is kept for no ticket",
        ),
        (len(opened) == len(facts.tickets), "two tickets have one number"),
        (len(dict(facts.members)) == len(facts.members), "two members have one name"),
        (opened >= payloads, "a payload is staged for a ticket that is not open"),
        (
            payloads >= {ticket.ticket for ticket in facts.tickets if ticket.sealed},
            "the payload of a committed ticket is missing",
        ),
    ):
        if not holds:
            raise StateError(f"shard state: {what}")


def _numbers(state: ShardState, kind: str) -> set[int]:
    names = [name for name in state.arrays if name.startswith(f"{kind}/")]
    wrong = [name for name in names if not name.removeprefix(f"{kind}/").isdecimal()]
    if wrong:
        raise StateError(f"shard state: expected {kind}/<number>, got the array {wrong[0]!r}")
    return set(state.numbered(kind))


def _check_arrays(state: ShardState, shard: ShardParts) -> None:
    """Check every array's name, type and shape."""
    updater, layout = shard.updater, shard.layout
    whole, weights = (layout.elements,), (layout.trainable,)
    kinds = ("version", "payload", "update")
    expected: dict[str, tuple[int, ...]] = {f"slot/{name}": weights for name in shard.optimizer.slots}
    for name, values in updater.memory.items():
        expected[f"{'constant' if name in updater.constants else 'memory'}/{name}"] = values.shape
    if shard.stream is not None:
        expected[_exact(shard.stream)] = whole
    expected |= {f"{kind}/{number}": whole for kind in kinds for number in _numbers(state, kind)}
    expected |= {f"update/{k}": whole for k in range(len(_numbers(state, "update")))}
    facts = state.facts
    shard.tables.check(state.arrays, facts.row_factors, facts.version, dict(facts.holds))
    given = {name for name in state.arrays if name.split("/")[0] not in TABLE_KINDS}
    earlier = [name for name in given if name.startswith(f"{BASE}/")]
    expected |= shard.bases.shapes(earlier, _started(facts.tickets))
    if expected.keys() != given:
        missing, more = sorted(expected.keys() - given), sorted(given - expected.keys())
        raise StateError(f"shard state: missing arrays: {missing or 'none'}; unknown ones: {more or 'none'}")
    for name, shape in expected.items():
        values = state.arrays[name]
        if values.dtype != np.float32 or values.shape != shape:
            raise StateError(
                f"shard state: {name}: expected float32 of shape {shape}, got {values.dtype} of shape {values.shape}"
            )
