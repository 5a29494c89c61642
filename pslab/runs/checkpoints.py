"""The checkpoints of a run, and what `--resume` would do with each, decided by the code of a resume."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pslab.experiment import Experiment
from pslab.runs.folder import CHECKPOINTS, DECISIONS, EXPERIMENT
from psserver.checkpoint import (
    Checkpoint,
    CheckpointError,
    Manifest,
    Store,
    check_same_job,
    coordinator_of,
    load_part,
    look,
    name_of,
    plan_of,
)
from psserver.checkpoint.rewind import UNREADABLE, LogIndex
from psserver.coordinator import JobTerms
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies import PolicyError, check_trusted
from psserver.policies import build as build_policy
from psserver.policies import names as policy_names
from psserver.records import StateError
from psserver.shard import Shard
from pswire.config.experiment import FROM_JOB
from pswire.transport.codecs import WireDtypeError
from pswire.transport.wire import deltas_named

Refusal = Callable[[Manifest], str | None]


def _no_part(_: Manifest) -> tuple[int, ...]:
    """Keep no arrays of the servers' parts: only their digests are verified."""
    return ()


class Fate(StrEnum):
    """The use that `--resume` can make of a checkpoint.

    LATEST: `latest` and `auto` take it. NAMED: it must be named. VOID: it does not belong to the log. REFUSED: the
    run's experiment does not match it. DAMAGED: it is unreadable or incomplete. ALONE: there is no log to go on with.
    """

    LATEST = "latest"
    NAMED = "named"
    VOID = "void"
    REFUSED = "refused"
    DAMAGED = "damaged"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint and its fate. `reason`: why a resume does not take it. `about`: None if it is unreadable."""

    name: str
    fate: Fate
    about: Manifest | None
    reason: str = ""


class Shelf:
    """The checkpoints of a run folder, or of a folder of checkpoints, in a run folder or elsewhere.

    Raises RewindError if there is a log that cannot be opened.
    """

    def __init__(self, folder: Path, *, trusted: bool = False) -> None:
        """`trusted`: a policy that is user code may be run."""
        self._trusted = trusted
        of_run = (folder / CHECKPOINTS).is_dir()
        self.store = Store(folder / CHECKPOINTS if of_run else folder)
        above = folder if of_run else folder.resolve().parent
        lies_in_run = of_run or folder.resolve().name == CHECKPOINTS
        self.run = above if lies_in_run and (above / DECISIONS).is_file() else None
        self.log = None if self.run is None else LogIndex(self.run)

    def listed(self, names: list[str]) -> Iterator[Listed]:
        """Yield each named checkpoint, in this order, with every byte verified. Skip one that is removed meanwhile."""
        refuses = _refusal(self.run, self._trusted)
        fates = {name: self._fate(name, refuses) for name in names}
        for newest in reversed(fates.values()):
            # A resume takes the newest readable one of the log or none, even if that one is refused.
            if newest.fate in (Fate.NAMED, Fate.REFUSED):
                break
        for name, found in fates.items():
            if found.fate is Fate.DAMAGED and name not in self.store.names():
                continue
            if found.fate is Fate.NAMED and found is newest:
                found = Listed(name, Fate.LATEST, found.about)
            yield found

    def _fate(self, name: str, refuses: Refusal) -> Listed:
        looked = look(self.store, name, self._lacks, _no_part)
        if looked.about is None or (looked.checkpoint is None and not looked.other):
            return Listed(name, Fate.DAMAGED, looked.about, looked.reason)
        if looked.checkpoint is not None:
            reason = refuses(looked.about)
            try:
                if reason is None and looked.about.policy.get("name") in policy_names():
                    self._try(looked.checkpoint)
            except CheckpointError as error:
                return Listed(name, Fate.DAMAGED, looked.about, str(error))
            return Listed(name, Fate.NAMED if reason is None else Fate.REFUSED, looked.about, reason or "")
        try:
            self.store.verify(name)
        except CheckpointError as error:
            return Listed(name, Fate.DAMAGED, looked.about, str(error))
        return Listed(name, Fate.VOID if self.log is not None else Fate.ALONE, looked.about, looked.reason)

    def _controller(self) -> Mapping[str, object]:
        """Return name and knobs of the job's controller, as the log's first entry has them; empty: it has none."""
        if self.run is None:
            return {}
        try:
            with (self.run / DECISIONS).open("rb") as file:
                found = json.loads(file.readline()).get("adapt")
        except (OSError, *UNREADABLE):
            return {}
        return found if isinstance(found, dict) else {}

    def _try(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if a resume would fail: valid digests do not prove valid content.

        One server's part is in memory at a time.
        """
        about = checkpoint.manifest
        plan, name = plan_of(checkpoint, about.servers), name_of(about.entry, about.job)
        knobs = dict(about.policy)
        try:
            policy = build_policy(str(knobs.pop("name")), knobs, about.workers, about.servers)
            optimizer = build_optimizer(about.optimizer)
            terms = JobTerms(
                *(about.job, about.servers, about.workers, about.seed),
                adapt=self._controller(),
            )
            coordinator_of(checkpoint, terms, policy)
            for server in range(about.servers):
                state = load_part(self.store, name, about, server)
                deltas = deltas_named(state.deltas)
                Shard(plan, server, optimizer, tensors=policy.tensors, deltas=deltas).check(state)
        except (StateError, OptimizerError, PolicyError, WireDtypeError, MemoryError) as error:
            raise CheckpointError(f"{self.store.root / name}: {error}") from error

    def _lacks(self, about: Manifest) -> str | None:
        if self.log is None:
            return f"there is no {DECISIONS} beside it, which a resume needs"
        return self.log.lacks(about.entry, about.job, about.version)


def next_complete(store: Store, name: str) -> str | None:
    """Return the newest complete checkpoint that is older than `name`, else the oldest of the others.

    Completeness is judged by sizes, not digests.
    """
    older: str | None = None
    for other in store.names():
        try:
            store.manifest(other)
        except CheckpointError:
            continue
        if other == name or (other > name and older is not None):
            continue
        if other > name:
            return other
        older = other
    return older


def _refusal(run: Path | None, trusted: bool) -> Refusal:
    """Return why `ps-lab run RUN/experiment.toml --resume` would refuse a checkpoint of its log, as a function.

    For a run that was started by hand it refuses nothing: the options of the next start are not known.
    """
    if run is None or not (run / EXPERIMENT).is_file():
        return lambda _: None
    try:
        return _against(Experiment.load(run / EXPERIMENT), trusted)
    except ValueError as error:
        # ExperimentError, PolicyError or OptimizerError.
        reason = str(error)
        return lambda _: reason


def _against(experiment: Experiment, trusted: bool) -> Refusal:
    cluster, chosen = experiment.cluster, experiment.policy
    check_trusted(chosen.name, trusted)
    policy = build_policy(chosen.name, chosen.knobs, cluster.workers, cluster.parts)
    own = experiment.optimizer
    optimizer = None if own.name == FROM_JOB else build_optimizer(own.config).config

    def refuses(about: Manifest) -> str | None:
        wanted = about.optimizer if optimizer is None else optimizer
        try:
            check_same_job(about, policy, wanted, cluster.workers, experiment.run.seed)
        except CheckpointError as error:
            return str(error)
        return None

    return refuses
