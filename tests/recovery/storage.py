"""Where checkpoints are: files on a disk that may fail, written by the servers' own code; or objects, for speed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psserver.checkpoint import (
    Checkpoint,
    CheckpointError,
    FileFacts,
    Manifest,
    Store,
    choose,
    describe,
    fence,
    name_of,
    save_coordinator,
    save_shard,
)
from psserver.checkpoint.resumption import LATEST
from psserver.checkpoint.rows import save_rows
from psserver.coordinator import JobState, JobTerms, Record
from psserver.policies import Policy
from psserver.shard import ShardState
from pswire.generations import Generation
from pswire.model.plan import Plan
from tests.checkpoint.fake_disk import FakeDisk

ROOT, KEEP, JOB = Path("/run/checkpoints"), 2, "job"
# The log is kept as objects, by whoever plays the schedule; on the disk it has a name, as the run's other files.
LOG = ROOT.parent / "decisions.jsonl"
# Faults after which a disk may have lost what it said that it has.
LYING = ("lost sync",)
Facts = Mapping[str, FileFacts]


@dataclass
class Due:
    """A checkpoint that the log has ordered. `files`: what is written of it; `missing`: servers without a part."""

    record: Record
    state: dict[str, Any]
    terms: JobTerms
    policy: Policy
    plan: Plan
    missing: set[int]
    files: dict[str, FileFacts] = field(default_factory=dict)
    begun: bool = False

    @property
    def name(self) -> str:
        return name_of(self.record.index, self.terms.job)

    def manifest(self) -> Manifest:
        return describe(self.record, self.state, self.terms, self.policy, self.plan, self.files)


class Memory:
    """Objects that nobody changes. As `Folder`, but for the faults."""

    trusted = True

    def __init__(self) -> None:
        self._generation = -1
        self._parts: dict[str, dict[int, ShardState]] = {}
        self._complete: list[tuple[Due, dict[int, ShardState]]] = []

    def name_job(self, logged: str) -> str:
        self._generation += 1
        return Generation(JOB, self._generation).name

    def put_part(self, name: str, state: ShardState) -> Facts:
        self._parts.setdefault(name, {})[state.facts.server] = state
        return {}

    def put_coordinator(self, due: Due) -> Facts:
        return {}

    def complete(self, due: Due) -> None:
        shards = self._parts.pop(due.name)
        self._complete = [*self._complete, (due, shards)][-KEEP:]

    def newest(self, fits: Callable[[Manifest], str | None]) -> Checkpoint | None:
        for due, shards in reversed(self._complete):
            if fits(due.manifest()) is None:
                return Checkpoint(due.manifest(), JobState.read(due.state), shards)
        return None

    def written(self) -> bool:
        """A checkpoint was complete once, whatever has become of it."""
        return bool(self._complete)

    def settle(self, found: Checkpoint) -> None:
        pass

    def lose_power(self) -> bool:
        """The log's name is still there."""
        return True


class Folder:
    """Files, by `psserver.checkpoint`. All but `newest` may raise CheckpointError and PowerLoss. `trusted`: the disk
    has not lied yet."""

    def __init__(self, seed: int) -> None:
        self.disk = FakeDisk(seed)
        self.trusted = True
        # New jobs have names that nobody else has.
        self._fresh = 0

    @property
    def store(self) -> Store:
        return Store(ROOT, self.disk)

    def name_job(self, logged: str) -> str:
        """The job's name in its next generation. `logged`: as the log has it, or empty."""
        self._fresh += 1
        name = fence.begin_next(self.store, logged, f"{JOB}{self._fresh}")
        self._make_log()
        return name

    def _make_log(self) -> None:
        """As server 0 does with `--resume auto`, once it has a name."""
        try:
            if LOG not in self.disk.live:
                self.disk.create(LOG).close()
        except OSError as error:
            raise CheckpointError(f"{LOG} cannot be made: {error}") from error

    def put_part(self, name: str, state: ShardState) -> Facts:
        """As `psserver.service.store.shard_part` has it."""
        rows = {each: array for each, array in state.arrays.items() if each.startswith("table/")}
        others = {each: array for each, array in state.arrays.items() if each not in rows}
        saved = save_rows(self.store, name, state.facts.server, [rows])
        return {**save_shard(self.store, name, ShardState(state.facts, others)), **saved}

    def put_coordinator(self, due: Due) -> Facts:
        return save_coordinator(self.store, due.name, due.state)

    def complete(self, due: Due) -> None:
        self.store.complete(due.manifest())
        self.store.prune(KEEP, frozenset({due.name}))

    def newest(self, fits: Callable[[Manifest], str | None]) -> Checkpoint | None:
        """None where none was ever complete. Raises CheckpointError where none is left."""
        return choose(self.store, LATEST, fits)[0] if self.store.written() else None

    def written(self) -> bool:
        return self.store.written()

    def settle(self, found: Checkpoint) -> None:
        self.store.settle(name_of(found.manifest.entry, found.manifest.job))

    # Faults

    def break_at(self, fault: str, steps: int) -> None:
        """After so many more steps."""
        self.heal()
        self.disk.fault, self.disk.at = fault, self.disk.steps + steps

    def heal(self) -> None:
        """A disk that was full has room again."""
        self.noticed()
        self.disk.at = -1

    def noticed(self) -> str:
        """The fault that has happened since it was asked last, if any."""
        if not self.disk.happened:
            return ""
        self.disk.happened, self.trusted = False, self.trusted and self.disk.fault not in LYING
        if self.disk.fault != "full":
            self.disk.at = -1
        return self.disk.fault

    def flip(self) -> bool:
        """A bit of a file is another one; False: there is none yet."""
        if not any(node is not None and node.data for node in self.disk.live.values()):
            return False
        self.disk.flip()
        self.trusted = False
        return True

    def lose_power(self) -> bool:
        self.noticed()
        self.disk = self.disk.lose_power(Path("/"))
        return LOG in self.disk.live
