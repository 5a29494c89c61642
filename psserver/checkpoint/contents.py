"""The state of a coordinator and its shards, to the files of a checkpoint and back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.manifest import FORMAT, FileFacts, Manifest
from psserver.checkpoint.rows import load_rows, row_files
from psserver.checkpoint.store import Store
from psserver.coordinator import JobState, JobTerms, Record
from psserver.decisions import entries
from psserver.policies import Policy
from psserver.policies.policy import config_of
from psserver.records import StateError, to_plain
from psserver.shard import ShardState
from psserver.shard.mixing import BASE
from pswire.model.plan import Plan, PlanError

Floats = NDArray[np.float32]

COORDINATOR = "coordinator.json"

# Selects the servers whose parts of a checkpoint a reader needs.
Wanted = Callable[[Manifest], Collection[int]]


def every_part(about: Manifest) -> Collection[int]:
    """Select the parts of all servers."""
    return range(about.servers)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One version on all servers. `shards`: the wanted parts, by server."""

    manifest: Manifest
    coordinator: JobState
    shards: Mapping[int, ShardState]


def describe(
    record: Record,
    state: Mapping[str, Any],
    terms: JobTerms,
    policy: Policy,
    plan: Plan,
    files: Mapping[str, FileFacts],
) -> Manifest:
    """Return the manifest of the checkpoint that `record` ordered. `state`: the coordinator's, as it is saved."""
    assert isinstance(record.entry, entries.Checkpoint)
    return Manifest(
        FORMAT,
        terms.job,
        record.index,
        record.entry.version,
        record.t,
        terms.servers,
        terms.workers,
        terms.seed,
        plan.fingerprint,
        tuple(plan.variables),
        [table.to_json() for table in plan.tables],
        to_plain(config_of(policy)),
        state["proposal"]["optimizer"],
        to_plain(policy.tensors.config),
        dict(files),
    )


def settled(state: ShardState) -> ShardState:
    """Return the part of a shard's state that matters once all workers are gone; arrays are not copied.

    Versions that were still to be read and payloads that were not committed are left out.
    """
    facts = state.facts
    committed = {ticket.ticket for ticket in facts.tickets if ticket.sealed}
    holds = [(ticket, version) for ticket, version in facts.holds if ticket in committed]
    needed = {facts.version, *(version for _, version in holds)}
    started = {ticket.version for ticket in facts.tickets if ticket.sealed}

    def kept(name: str) -> bool:
        kind, _, number = name.partition("/")
        if kind == "version":
            return int(number) in needed
        if kind == BASE:
            return int(number.split("/")[0]) in started
        if kind == "undo":
            return int(number.split("/")[0]) > min(needed)
        return kind not in ("payload", "rows") or int(number.split("/")[0]) in committed

    arrays = {name: values for name, values in state.arrays.items() if kept(name)}
    return ShardState(replace(facts, holds=holds), arrays)


def save_shard(store: Store, name: str, state: ShardState) -> dict[str, FileFacts]:
    """Write a server's files, and return their facts for the manifest. Raises CheckpointError."""
    arrays, facts = _files(state.facts.server)
    store.begin(name)
    return {
        arrays: store.put_arrays(name, arrays, state.arrays),
        facts: store.put_json(name, facts, state.to_json()),
    }


def save_coordinator(store: Store, name: str, state: Mapping[str, Any]) -> dict[str, FileFacts]:
    """Write the coordinator's file. `state`: as of `Coordinator.saved`. Raises CheckpointError."""
    store.begin(name)
    return {COORDINATOR: store.put_json(name, COORDINATOR, dict(state))}


def _files(server: int) -> tuple[str, str]:
    return f"server-{server}.safetensors", f"server-{server}.json"


def load(store: Store, name: str, wanted: Wanted = every_part) -> Checkpoint:
    """Read a checkpoint and check all digests, one server's part after another; only wanted parts take memory.

    Raises CheckpointError, which names the file.
    """
    about, shards = store.manifest(name), {}
    for server in range(about.servers):
        if server in wanted(about):
            shards[server] = load_part(store, name, about, server)
        else:
            store.verify_files(name, about, [*_files(server), *row_files(about, server)])
    try:
        coordinator = JobState.read(store.json(name, COORDINATOR, _facts(about, COORDINATOR)))
    except StateError as error:
        raise CheckpointError(f"{store.root / name / COORDINATOR}: {error}") from error
    for what, got in (("version", coordinator.version), ("servers", coordinator.servers)):
        if got != getattr(about, what):
            raise CheckpointError(
                f"{store.root / name}: the coordinator's {what} is {got}, the manifest's {getattr(about, what)}"
            )
    return Checkpoint(about, coordinator, shards)


def weights(store: Store, name: str) -> tuple[Manifest, dict[str, Floats]]:
    """Read only the variables of a checkpoint's version: by name, in the plan's order. Raises CheckpointError."""
    about = store.manifest(name)
    wanted = f"version/{about.version}"
    flats = [found[wanted] for found in _arrays(store, name, about, (wanted,))]
    try:
        return about, about.plan_for(about.servers).gather_by_name(flats)
    except (PlanError, ValueError) as error:
        raise CheckpointError(f"{store.root / name}: does not hold its variables: {error}") from error


def slots(
    store: Store, name: str, about: Manifest, names: Sequence[str]
) -> tuple[list[dict[str, Floats]], float]:
    """Read the slots of the optimizer, and the factor on the initial learning rate.

    Returns, for each slot in `names`, the trained variables by name. Raises CheckpointError.
    """
    wanted = [f"slot/{slot}" for slot in names]
    arrays = _arrays(store, name, about, wanted)
    try:
        plan = about.plan_for(about.servers)
        variables = [variable.name for variable in about.variables]
        found = [
            dict(zip(variables, plan.gather_trained([part[each] for part in arrays]), strict=True))
            for each in wanted
        ]
        state = JobState.read(store.json(name, COORDINATOR, _facts(about, COORDINATOR)))
    except (PlanError, StateError, ValueError) as error:
        raise CheckpointError(f"{store.root / name}: {error}") from error
    return found, state.lr_scale


def _arrays(store: Store, name: str, about: Manifest, wanted: Sequence[str]) -> list[dict[str, Floats]]:
    """Read these arrays of every server. Raises CheckpointError if one of them is missing."""
    parts = []
    for server in range(about.servers):
        file, _ = _files(server)
        found = store.arrays(name, file, _facts(about, file), wanted.__contains__)
        for each in wanted:
            if each not in found:
                raise CheckpointError(f"{store.root / name / file}: has no array {each!r}: it was edited")
        parts.append(found)
    return parts


@dataclass(frozen=True, slots=True)
class Look:
    """The result of inspecting a checkpoint.

    `checkpoint`: None if `reason` says why it is not used. `about`: None if even the manifest cannot be read. `other`:
    the checkpoint is not damaged, but belongs to another run.
    """

    name: str
    about: Manifest | None
    checkpoint: Checkpoint | None
    reason: str = ""
    other: bool = False


def look(
    store: Store, name: str, fits: Callable[[Manifest], str | None], wanted: Wanted = every_part
) -> Look:
    """Read that checkpoint, unless `fits` returns a reason against it."""
    about = None
    try:
        about = store.manifest(name)
        reason = fits(about)
        if reason is not None:
            return Look(name, about, None, reason, other=True)
        return Look(name, about, load(store, name, wanted))
    except CheckpointError as error:
        return Look(name, about, None, str(error))


def newest(
    store: Store, fits: Callable[[Manifest], str | None], wanted: Wanted = every_part
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest usable checkpoint, and a sentence about each newer one that was skipped.

    Usable: it can be read, and `fits` returns no reason against it. Raises CheckpointError if the folder itself cannot
    be read.
    """
    passed: list[str] = []
    for name in reversed(store.names()):
        found = look(store, name, fits, wanted)
        if found.checkpoint is not None:
            return found.checkpoint, passed
        passed.append(f"{name}: {found.reason}")
    return None, passed


def part_nbytes(about: Manifest, server: int) -> int:
    """Return the bytes of one server's part."""
    mine = {*_files(server), *row_files(about, server)}
    return sum(facts.bytes for file, facts in about.files.items() if file in mine)


def load_part(store: Store, name: str, about: Manifest, server: int) -> ShardState:
    """Read one server's part. Raises CheckpointError."""
    arrays, facts = _files(server)
    plain, values = (
        store.json(name, facts, _facts(about, facts)),
        {**store.arrays(name, arrays, _facts(about, arrays)), **load_rows(store, name, about, server)},
    )
    try:
        state = ShardState.from_json(plain, values)
    except StateError as error:
        raise CheckpointError(f"{store.root / name / facts}: {error}") from error
    if (state.facts.server, state.facts.plan, state.facts.version) != (server, about.plan, about.version):
        raise CheckpointError(
            f"{store.root / name / facts}: expected server {server} of plan {about.plan} at version {about.version}, "
            f"got server {state.facts.server} of plan {state.facts.plan} at version {state.facts.version}"
        )
    return state


def _facts(about: Manifest, file: str) -> FileFacts:
    if file not in about.files:
        raise CheckpointError(f"the manifest of entry {about.entry} names no {file}: it was edited")
    return about.files[file]
