"""From a checkpoint to a coordinator and shards that go on, on as many servers as there are now."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from psserver.checkpoint.contents import Checkpoint, load, newest
from psserver.checkpoint.errors import CheckpointError
from psserver.checkpoint.manifest import Manifest
from psserver.checkpoint.store import Store
from psserver.coordinator import Coordinator, JobTerms
from psserver.coordinator.assurance import Assurance
from psserver.coordinator.state import reopened
from psserver.policies import Policy
from psserver.shard import ShardState, reshard
from pswire.model.plan import Plan, PlanError, make_plan
from pswire.records import StateError, to_plain

LATEST = "latest"


def choose(store: Store, which: str, fits: Callable[[Manifest], str | None]) -> tuple[Checkpoint, list[str]]:
    """The checkpoint that `which` names: its folder, or "latest". And a sentence for each that was passed over.

    `fits` says why one is none of this run's. Raises CheckpointError when none is left.
    """
    if which == LATEST:
        found, passed = newest(store, fits)
        if found is None:
            reasons = "".join(f"\n  {reason}" for reason in passed)
            raise CheckpointError(f"{store.root}: there is no checkpoint to go on from{reasons}")
        return found, passed
    name = Path(which).name
    reason = fits(store.manifest(name))
    if reason is not None:
        raise CheckpointError(f"{store.root / name}: {reason}")
    return load(store, name), []


def check_same_job(
    about: Manifest, policy: Policy, optimizer: Mapping[str, object], workers: int, seed: int
) -> None:
    """The job that goes on is the one that was saved; only its number of servers may be another.

    Raises CheckpointError."""
    for what, saved, now in (
        ("policy", about.policy, to_plain({"name": policy.name, **policy.knobs})),
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


def coordinator_of(
    checkpoint: Checkpoint, terms: JobTerms, policy: Policy, now: float, assurance: Assurance | None
) -> Coordinator:
    """A coordinator in the saved state; call its `resume` next. Raises CheckpointError."""
    state = replace(reopened(checkpoint.coordinator, policy), servers=terms.servers)
    coordinator = Coordinator(terms, policy, now, assurance)
    try:
        coordinator.restore(state, shift=now - checkpoint.manifest.clock)
    except StateError as error:
        raise CheckpointError(f"the checkpoint of version {checkpoint.manifest.version}: {error}") from error
    return coordinator


def plan_of(checkpoint: Checkpoint, servers: int) -> Plan:
    """The layout of the saved model over so many servers. Raises CheckpointError."""
    try:
        return make_plan(checkpoint.manifest.variables, servers)
    except PlanError as error:
        raise CheckpointError(f"the checkpoint's model cannot be laid out: {error}") from error


def shards_of(checkpoint: Checkpoint, plan: Plan) -> Sequence[ShardState]:
    """The states of all shards of `plan`. Raises CheckpointError."""
    about = checkpoint.manifest
    if plan.fingerprint == about.plan:
        return checkpoint.shards
    try:
        return reshard(checkpoint.shards, plan_of(checkpoint, about.servers), plan)
    except StateError as error:
        raise CheckpointError(f"the checkpoint of version {about.version}: {error}") from error
