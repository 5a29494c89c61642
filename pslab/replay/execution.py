"""The execution of a decision log: the shell around shards and worker replicas."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pslab.replay.records import job_of, model_of
from pslab.replay.worker_replica import DataError, DataPart, Remembering, WorkerReplica, memory_of
from pslab.runs.fold import LogState
from pslab.simulator.store import ShardStore
from psserver.checkpoint import settled
from psserver.coordinator import Record
from psserver.coordinator.roster import Tally
from psserver.decisions import entries
from psserver.optimizers import build as build_optimizer
from psserver.policies import LocalRule, PolicyError, TensorParts
from psserver.policies.declarations import from_config
from psserver.shard import ShardError, reshard
from psserver.shard.payload_checks import same_norm
from pswire.model.plan import Plan, make_plan
from pswire.model.rows import NO_ROWS, RowsByName
from pswire.transport.wire import wire_named
from psworker.engine import UnitPart
from psworker.local import LocalRuleError, LocalWork, Result, Trainer, gradient_of, tables_of
from psworker.local import build as build_local

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first contribution that differs from the log.

    It was computed from version `base`, and became part of `version`; None if it was dropped.
    """

    ticket: int
    worker: str
    batch: int
    base: int
    version: int | None
    what: str
    logged: float
    recomputed: float

    def __str__(self) -> str:
        part = "was dropped" if self.version is None else f"became part of version {self.version}"
        return (
            f"the {self.what} of batch {self.batch} of {self.worker} (ticket {self.ticket}) from version {self.base} "
            f"is {self.recomputed!r}, the log has {self.logged!r}; the contribution {part}"
        )


@dataclass(slots=True)
class Replayed:
    """How far a replay got, and its result.

    `computed`: contributions computed again; `agreed`: those with the logged loss and norm. `skipped`: contributions
    that nothing depends on. `kept`: elements that were kept back, here as in the log. `first`: the first difference.
    `proven`: the newest version from which a contribution was computed in agreement with the log, before
    any difference. `rate`: the learning rate that was set last, or None.
    """

    version: int = -1
    computed: int = 0
    agreed: int = 0
    skipped: int = 0
    kept: int = 0
    first: Difference | None = None
    proven: int = -1
    finished: bool = False
    rate: float | None = None


@dataclass
class Replay:
    """A replay, to be `run` once; then the store holds the version that it reached.

    `trainer` stands in for all workers. `epochs` and `wire_dtype` are the experiment's; everything else is in the log.
    """

    steps: list[Record]
    trainer: Trainer
    epochs: int = 1
    wire_dtype: str = "float32"
    store: ShardStore = field(init=False)
    result: Replayed = field(init=False, default_factory=Replayed)
    _replicas: dict[str, WorkerReplica] = field(init=False, default_factory=dict)
    # How many batches a worker that comes back skips.
    _tallies: dict[str, Tally] = field(init=False, default_factory=dict)
    _log: LogState = field(init=False, default_factory=LogState)
    # Version -> how many elements are kept back here, and the variable with most of them.
    _kept: dict[int, tuple[int, str]] = field(init=False, default_factory=dict)
    # Open ticket -> its part of a work unit, if the job deals them.
    _parts: dict[int, UnitPart | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        job = job_of(self.steps)
        specs = self.trainer.specs
        plan = make_plan([spec for spec, _ in specs], job.servers, tables_of(self.trainer))
        # Before the trainer uses its variables as scratch memory.
        self._initial = plan.scatter([values for _, values in specs])
        self.trainer.attach(plan)
        self._fresh = memory_of(self.trainer)
        self._batches = LocalRule(str((job.local or {}).get("name", "gradient")), _numbers(job)).batches
        # Under some rules and codecs a contribution depends on earlier ones, whatever their fates.
        self._remembers = local_work(job, plan).rule.remembers or wire_named(self.wire_dtype).up.remembers
        # Bases are kept while their tickets are open: contributions are computed at their commits, from versions
        # that may be old by then.
        self._plan, self.store = plan, self._store_of(plan)
        self._versions = _versions(self.steps)
        self._needed = _needed(self.steps)

    def _store_of(self, plan: Plan) -> ShardStore:
        job = job_of(self.steps)
        return ShardStore(
            plan,
            build_optimizer(model_of(self.steps).optimizer),
            _tensors(job),
            workers=job.workers,
            keep_bases=True,
            wire_dtype=self.wire_dtype,
        )

    def _go_on(self, servers: int) -> None:
        """Continue on another number of servers: workers that join from here on have another layout."""
        if servers == len(self._plan.shards):
            return
        former, folded, plan = (
            self.store,
            self.store.folded,
            make_plan(self._plan.variables, servers, self._plan.tables),
        )
        states = reshard([settled(state) for state in former.states()], self._plan, plan)
        self._plan, self.store = plan, self._store_of(plan)
        self.store.restore(states, sorted(folded))
        self.trainer.attach(plan)

    @property
    def draws(self) -> bool:
        """True if the model keeps state that does not travel, so that the order of its steps matters."""
        return isinstance(self.trainer, Remembering) and bool(self._fresh)

    @property
    def last(self) -> int:
        """The newest version of the log; -1 if there is none."""
        made = [s.entry.version for s in self.steps if isinstance(s.entry, entries.Install | entries.Apply)]
        return max(made, default=-1)

    def run(self, until: int | None = None, watch: Callable[[Replayed], None] | None = None) -> Replayed:
        """Execute the log, up to the entry that makes version `until` or to the end.

        `watch` is called after each version. Raises DataError for a log that cannot be executed or data that has
        changed, and whatever the job's own code raises.
        """
        for step in self.steps:
            try:
                self._prepare(step.entry)
                self.store.execute(step.entry)
            except ShardError as error:
                raise DataError(
                    f"entry {step.index}, {step.entry.kind}, cannot be executed: {error}; "
                    "ps-lab check shows whether the log was edited"
                ) from error
            self._log.see(step.entry, step.t)
            if isinstance(step.entry, entries.Nonfinite):
                self._check_kept(step, step.entry)
            if isinstance(step.entry, entries.Install | entries.Apply):
                fact, self.result.version = self.store.fact, step.entry.version
                if fact.kept:
                    self._kept[fact.version] = fact.kept, fact.variable
                if watch is not None:
                    watch(self.result)
                if step.entry.version == until:
                    return self.result
        self.result.finished = True
        return self.result

    def _prepare(self, entry: entries.Entry) -> None:
        """Do what must be done before the shards execute the entry."""
        match entry:
            case entries.Join(worker, _, rank):
                self._join(worker, rank)
            case entries.Restore(servers=servers):
                self._go_on(servers)
            case entries.Install(_, ticket):
                self._push(ticket, self._initial)
            case entries.Grant(worker, ticket) as grant:
                self._parts[ticket] = _dealt(grant)
                self._tallies.setdefault(worker, Tally()).granted += 1
            case entries.Commit():
                self._commit(entry)
            case entries.Rate(learning_rate=rate):
                self.result.rate = rate
            case entries.Cancel(worker, ticket) | entries.Abandon(worker, ticket):
                # The initial values' ticket uses no data.
                if ticket in self._parts and worker in self._replicas:
                    self._replicas[worker].uncertain += 1
                self._parts.pop(ticket, None)
            case _:
                pass

    def _check_kept(self, step: Record, logged: entries.Nonfinite) -> None:
        """Raise DataError if other elements of that version are kept back here."""
        kept, variable = self._kept.pop(logged.version, (0, ""))
        if (kept, variable) != (logged.kept, logged.variable):
            here = f"{kept}, most of {variable}" if kept else "none"
            raise DataError(
                f"entry {step.index}: {logged.kept} elements of version {logged.version} were kept back, most of "
                f"{logged.variable}; here {here}: the data have changed, or the log was edited"
            )
        self.result.kept += kept

    def _join(self, worker: str, rank: int) -> None:
        job = job_of(self.steps)
        part = DataPart(rank, job.workers, job.seed, self.epochs)
        skip = self._tallies.setdefault(worker, Tally()).next_batch
        work = local_work(job, self._plan)
        self._replicas[worker] = WorkerReplica(worker, part, self.trainer, self._fresh, skip, work)

    def _commit(self, commit: entries.Commit) -> None:
        base = self._log.held[commit.ticket].base if commit.ticket in self._parts else None
        if base is None:
            raise ShardError(f"ticket {commit.ticket} is not open")
        part = self._parts.pop(commit.ticket)
        self._tallies.setdefault(commit.worker, Tally()).use(commit.batch, self._batches)
        needed = commit.ticket in self._needed
        if not needed and not self.draws and not self._remembers:
            self.result.skipped += 1
            return
        weights = self.store.read(commit.ticket, base)
        assert weights is not None, f"version {base} is gone before the commit of ticket {commit.ticket}"
        result = self._replicas[commit.worker].compute(
            weights,
            part or commit.batch,
            lambda found: _difference(commit, found, None) is None,
            gradient_of(self.trainer, partial(self.store.read_rows, base)),
            base,
        )
        self.store.go_on_from(commit)
        if needed:
            self._push(commit.ticket, result.flats, getattr(result, "rows", NO_ROWS))
            norm = self.store.norm(commit.ticket)
        else:
            norm = self.store.encode(commit.ticket, result.flats)
        self._judge(commit, base, result, norm)

    def _judge(self, commit: entries.Commit, base: int, result: Result, norm: float | None) -> None:
        replayed = self.result
        replayed.computed += 1
        found = _difference(commit, result, norm)
        if found is None:
            replayed.agreed += 1
            if replayed.first is None:
                replayed.proven = max(replayed.proven, base)
        elif replayed.first is None:
            what, logged, recomputed = found
            version = self._versions.get(commit.ticket)
            replayed.first = Difference(
                commit.ticket, commit.worker, commit.batch, base, version, what, logged, recomputed
            )

    def _push(self, ticket: int, flats: list[Floats], rows: RowsByName = NO_ROWS) -> None:
        problem = self.store.push(ticket, flats, rows)
        if problem is not None:
            raise DataError(f"the payload of ticket {ticket} was finite, recomputed it holds {problem}")


def _dealt(grant: entries.Grant) -> UnitPart | None:
    epoch, unit, part = grant.epoch, grant.unit, grant.part
    return None if epoch is None or unit is None or part is None else UnitPart(epoch, unit, part)


def local_work(job: entries.Job, plan: Plan) -> LocalWork:
    """Return the workers' local rule, as entry 0 of the log names it. Raises DataError."""
    name = str((job.local or {}).get("name", ""))
    try:
        trainable = [shard.trainable for shard in plan.shards]
        return LocalWork(build_local(name, _numbers(job), trainable, plan))
    except LocalRuleError as error:
        raise DataError(f"the log's first entry: {error}") from error


def _numbers(job: entries.Job) -> dict[str, float]:
    """Return the knobs of the workers' rule."""
    return {knob: value for knob, value in (job.local or {}).items() if isinstance(value, int | float)}


def _difference(
    commit: entries.Commit, result: Result, norm: float | None
) -> tuple[str, float, float] | None:
    """Return (what, logged, recomputed) of the first number that differs; None if none does.

    Numbers must be equal to the bit, norms in all digits of the log. `norm`: of the payload as servers receive it;
    None if not known.
    """
    for what, logged, recomputed in (
        ("number of samples", commit.samples, result.samples),
        ("loss", commit.loss, result.loss),
    ):
        # The log has null for every number that is not finite.
        same = logged == recomputed or not (math.isfinite(logged) or math.isfinite(recomputed))
        if not same:
            return what, logged, recomputed
    if norm is not None and not same_norm(commit.norm, norm):
        return "gradient's norm", commit.norm, norm
    return None


def _tensors(job: entries.Job) -> TensorParts:
    try:
        return from_config(job.tensors or {})
    except PolicyError as error:
        raise DataError(f"entry 0 of the log: tensors: {error}") from error


def _versions(steps: Iterable[Record]) -> dict[int, int]:
    """Return ticket -> the version that it became part of."""
    applies = (step.entry for step in steps if isinstance(step.entry, entries.Apply))
    return {part.ticket: apply.version for apply in applies for part in apply.parts}


def _needed(steps: Iterable[Record]) -> set[int]:
    """Return the tickets whose payloads the shards use."""
    needed = set(_versions(steps))
    # Some are summed, and dropped at the stop.
    return needed | {step.entry.ticket for step in steps if isinstance(step.entry, entries.Fold)}
