"""From a checkpoint to a coordinator and shards that continue, on any number of servers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from psserver.checkpoint.contents import (
    Checkpoint,
    Wanted,
    every_part,
    load,
    load_part,
    look,
    newest,
    part_nbytes,
)
from psserver.checkpoint.disk import CheckpointError
from psserver.checkpoint.manifest import Manifest
from psserver.checkpoint.rewind import LogIndex, Mark
from psserver.checkpoint.store import Store
from psserver.coordinator import Coordinator, JobTerms
from psserver.coordinator.saving import reopen
from psserver.decisions.counting import Pending
from psserver.policies import Policy
from psserver.policies.policy import config_of
from psserver.records import StateError, to_plain
from psserver.shard import ShardState, reshard
from pswire.model.plan import Plan, PlanError

LATEST = "latest"
# Continue from the newest checkpoint, or begin if there is none.
AUTO = "auto"


def choose(
    store: Store, which: str, fits: Callable[[Manifest], str | None], wanted: Wanted = every_part
) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint that `which` names (its folder, or "latest"), and a sentence about each one skipped.

    `fits` says why a checkpoint does not belong to this run. Raises CheckpointError if none is left.
    """
    if which == LATEST:
        found, passed = newest(store, fits, wanted)
        if found is None:
            reasons = "".join(f"\n  {reason}" for reason in passed)
            raise CheckpointError(f"{store.root}: there is no checkpoint to go on from{reasons}")
        return found, passed
    name, names = Path(which).name, store.names()
    if name not in names:
        there = f"expected one of {', '.join(names)}" if names else "there is none"
        raise CheckpointError(f"{store.root}: there is no checkpoint of the name {name}: {there}")
    looked = look(store, name, fits, wanted)
    if looked.checkpoint is None:
        raise CheckpointError(f"{store.root / name}: {looked.reason}" if looked.other else looked.reason)
    return looked.checkpoint, []


def check_same_job(
    about: Manifest, policy: Policy, optimizer: Mapping[str, object], workers: int, seed: int
) -> None:
    """Check that the job continues as it was saved; only the number of servers may differ. Raises CheckpointError."""
    for what, saved, now in (
        ("policy", about.policy, to_plain(config_of(policy))),
        ("policy's parts that see tensors", about.tensors, to_plain(policy.tensors.config)),
        ("optimizer", about.optimizer, to_plain(dict(optimizer))),
        ("number of workers", about.workers, workers),
        ("seed", about.seed, seed),
    ):
        if saved != now:
            raise CheckpointError(
                f"the checkpoint of version {about.version} was saved by a job whose {what} is {saved}, this one's is "
                f"{now}: a job goes on as it began; for another one begin with its weights"
            )


def mark_of(index: LogIndex, checkpoint: Checkpoint) -> Mark:
    """Return the checkpoint's place in the log. Its own facts replace those of a log that may be damaged."""
    about, tickets = checkpoint.manifest, checkpoint.coordinator.tickets
    pending = {each.number: (each.samples, each.loss) for each in tickets.in_state("pending")}
    mark = index.marks[about.entry]
    known = Pending(pending, mark.pending.samples, mark.pending.losses)
    return replace(mark, job=about.job, pending=known)


def coordinator_of(checkpoint: Checkpoint, terms: JobTerms, policy: Policy) -> Coordinator:
    """Return a coordinator in the saved state, which becomes its own; the input `Resumed` is next.

    Raises CheckpointError.
    """
    state, about = checkpoint.coordinator, checkpoint.manifest
    if state.proposal.optimizer != about.optimizer:
        raise CheckpointError(
            f"the checkpoint of version {about.version}: its manifest names the optimizer {about.optimizer}, and its "
            f"coordinator {state.proposal.optimizer}: it was edited"
        )
    try:
        reopen(state, policy)
        state.servers = terms.servers
        return Coordinator(terms, policy, state)
    except StateError as error:
        raise CheckpointError(f"the checkpoint of version {about.version}: {error}") from error


def plan_of(checkpoint: Checkpoint, servers: int) -> Plan:
    """Return the layout of the saved model over this many servers. Raises CheckpointError."""
    try:
        return checkpoint.manifest.plan_for(servers)
    except PlanError as error:
        raise CheckpointError(f"the checkpoint's model cannot be laid out: {error}") from error


def needed_by(server: int, servers: int) -> Wanted:
    """Select what a server needs of a checkpoint: its own part, or all parts if the layout differs."""

    def wanted(about: Manifest) -> Collection[int]:
        try:
            same = about.plan_for(servers).fingerprint == about.plan
        except PlanError:
            # `plan_of` reports the error.
            same = False
        return (server,) if same else every_part(about)

    return wanted


def part_of(store: Store, name: str, plan: Plan, server: int) -> ShardState:
    """Return the state of one shard of `plan`; under the same plan nothing else is read. Raises CheckpointError."""
    about = store.manifest(name)
    if plan.fingerprint == about.plan:
        return load_part(store, name, about, server)
    return shards_of(load(store, name), plan)[server]


def nbytes_for(store: Store, name: str, plan: Plan, server: int) -> int:
    """Return the bytes that `part_of` reads. Raises CheckpointError."""
    about = store.manifest(name)
    if plan.fingerprint == about.plan:
        return part_nbytes(about, server)
    return sum(facts.bytes for facts in about.files.values())


def shards_of(checkpoint: Checkpoint, plan: Plan) -> Mapping[int, ShardState]:
    """Return the states of the shards of `plan`, by server. Raises CheckpointError.

    Under the same plan these are the wanted ones; under another plan all, resharded.
    """
    about = checkpoint.manifest
    if plan.fingerprint == about.plan:
        return checkpoint.shards
    try:
        states = [checkpoint.shards[server] for server in range(about.servers)]
        return dict(enumerate(reshard(states, plan_of(checkpoint, about.servers), plan)))
    except StateError as error:
        raise CheckpointError(f"the checkpoint of version {about.version}: {error}") from error
