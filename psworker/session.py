"""A worker's session with the parameter servers; usable from any training loop.

The life of one step: `ready` -> `pull` -> compute -> `push` -> `commit`. Only
numpy is needed; see `examples/numpy_loop.py`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.addresses import Address
from pswire.model.plan import VariableSpec, make_plan
from pswire.security.credentials import NO_TLS, Credentials
from pswire.transport.wire import wire_named
from psworker.control.backoff import Backoff, Contact
from psworker.control.epochs import EpochTotals, gather
from psworker.control.registration import FIRST, Phase, Registration
from psworker.control.stream import Control
from psworker.data.payloads import Payload
from psworker.data.reader import WeightReader
from psworker.data.shard_group import ShardGroup
from psworker.data.timing import Stopwatch
from psworker.data.transport import TRANSPORTS
from psworker.data.writer import GradientWriter
from psworker.engine import Commit, Disposition, Grant, Stop
from psworker.errors import JobStopped, Refused, Voided
from psworker.local import PLAIN, LocalRuleError, LocalWork, build
from psworker.work import Unit, WorkUnits

Floats = NDArray[np.float32]


class Session:
    """An open session. Not thread-safe: one training loop uses it. Close it, or use `with`.

    `opened`: how many this process has opened, ever.
    """

    opened: ClassVar[int] = 0

    def __init__(
        self,
        hosts: tuple[Address, ...],
        variables: Sequence[tuple[VariableSpec, ArrayLike]],
        name: str | None,
        task_index: int | None,
        wire_dtype: str,
        server_timeout: float,
        transport: str = "auto",
        prefetch: bool = False,
        optimizer: Mapping[str, Any] | None = None,
        work: WorkUnits | None = None,
        epochs: int = 1,
        credentials: Credentials = NO_TLS,
        phase: Phase = FIRST,
    ) -> None:
        wire = wire_named(wire_dtype)
        if transport not in TRANSPORTS:
            raise ValueError(f"transport: expected one of {', '.join(TRANSPORTS)}, got {transport!r}")
        if transport == "shared-memory" and wire.up.remembers:
            raise ValueError(
                f"shared memory carries float32: expected another transport beside wire_dtype {wire_dtype!r}"
            )
        self.plan = make_plan([spec for spec, _ in variables], len(hosts))
        self._initial = [np.asarray(value) for _, value in variables]
        self._wire, self._strict = wire, transport == "shared-memory"
        wire.up.prepare()
        self._servers = ShardGroup(hosts, self.plan, wire, server_timeout, transport, credentials)
        self._shards = self._servers.shards
        contact = Contact(hosts[0], credentials)
        backoff = Backoff(0, hosts[0], server_timeout, self._servers.closing, contact)
        channel, admit = self._servers.control, self._servers.admit
        requested_optimizer = "" if optimizer is None else json.dumps(optimizer)
        self.work = work
        registration = Registration(
            channel,
            self.plan,
            wire.up,
            name,
            task_index,
            backoff,
            requested_optimizer,
            work,
            epochs,
            phase,
        )
        try:
            self._control = Control(
                channel,
                registration.join,
                admit,
                registration.session,
                backoff,
                self._servers.give_up,
                numbered=work is None,
            )
        except BaseException:
            self._servers.close()
            raise
        Session.opened += 1
        self._at_close: tuple[Callable[[], object], Callable[[], object]] | None = None
        self._servers.explain, self._servers.void = self._control.explained, self._control.void
        self._servers.on_transport = self._control.tell_carriers
        self._epoch_backoff = Backoff(0, hosts[0], server_timeout, self._servers.closing, contact)
        self._watch = Stopwatch()
        self._reader = WeightReader(self._servers, self._control, self._watch, prefetch)
        self._writer = GradientWriter(self._servers, self._control, self._reader, self._watch)

    # What the servers said at Join

    @property
    def job(self) -> str:
        """The job's name, as the servers gave it."""
        return self._control.joined.reply.job

    @property
    def worker(self) -> str:
        """This worker's name."""
        return self._control.joined.reply.worker

    @property
    def worker_index(self) -> int:
        """This worker's part of the data: 0 to `worker_count` - 1, higher for workers that join later."""
        return self._control.joined.reply.worker_index

    @property
    def worker_count(self) -> int:
        """Workers that the job was started for."""
        return self._control.joined.reply.worker_count

    @property
    def seed(self) -> int:
        """The job's seed, the same on every worker."""
        return self._control.joined.reply.seed

    @property
    def chief(self) -> str:
        """The name of the worker that validates and writes files for all, as it was at Join; empty: worker 0 does."""
        return self._control.joined.reply.chief

    @property
    def learning_rate(self) -> float | None:
        """The job's present one, as far as it is known here: as it was at Join, and as this session's commits have set
        it since. None where no commit may set one: the rate follows a schedule or began with 0, or the policy tolerates
        bad workers."""
        return self._control.joined.learning_rate

    @property
    def incarnation(self) -> int:
        """How often a worker of this name joined before. Another one than before: the servers had given us up."""
        return self._control.joined.reply.incarnation

    @property
    def membership(self) -> int:
        """How often this session has become another member since it was opened: what goes with the former one (moments
        of a local rule, say) is void then."""
        return self._control.joined.renewals

    def goes_back(self) -> None:
        """This loop can go back in its data: from now on `ready` and `done` raise RolledBack where commits of this
        session are undone, because the servers went back to a checkpoint. Without it a warning says how many are."""
        self._control.joined.goes_back = True

    @property
    def local_rule(self) -> str:
        """What the policy wants done between pull and push: "gradient", or a rule of `psworker.local`."""
        return self._control.joined.reply.local_rule.name or PLAIN

    def local_work(self) -> LocalWork:
        """The local rule, with nothing to remember yet. Raises Refused when it is not known here."""
        rule = self._control.joined.reply.local_rule
        try:
            made = build(rule.name, rule.knobs, [shard.trainable for shard in self.plan.shards])
        except LocalRuleError as error:
            raise Refused(str(error)) from error
        return LocalWork(made, self.membership)

    @property
    def next_batch(self) -> int:
        """The first batch that no incarnation of this worker has committed, at the newest Join: where a restart goes
        on."""
        return self._control.joined.reply.next_batch

    @property
    def phases_over(self) -> int:
        """How many phases of the job were over at the newest Join."""
        return self._control.joined.reply.phase

    @property
    def phase_batch(self) -> int:
        """The first batch of this worker's data in the phase of the newest Join."""
        return self._control.joined.reply.phase_batch

    def unit(self, grant: Grant) -> Unit:
        """The work unit that the grant's part belongs to. Only after `connect(work=...)`."""
        assert self.work is not None and grant.part is not None, "the job deals no work units"
        return self.work.of(grant.part.epoch, grant.part.unit, self.seed)

    def indices(self, grant: Grant) -> NDArray[np.int64]:
        """The numbers of the samples to work on under this grant, for ``WorkUnits(samples=...)``; none where the
        unit has ended before that part: then `abandon` it with `unit_ends`."""
        unit = self.unit(grant)
        assert self.work is not None and self.work.samples and grant.part is not None, (
            "units are not of samples"
        )
        start = grant.part.part * unit.batch_size
        return unit.indices[start : start + unit.batch_size]

    @property
    def stop(self) -> Stop | None:
        """Set once the job is over."""
        return self._control.stop

    @property
    def transport(self) -> tuple[str, ...]:
        """How payloads travel, by server: "grpc", "socket" or "shared-memory"; "undecided" before the
        first one."""
        return tuple(shard.transport for shard in self._shards)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the weights that `psworker.loop` hands to a trainer: "float32" from shared memory and to a local rule,
        else the wire dtype."""
        reckoned = self._strict or self.local_rule != PLAIN or not self._wire.same
        return ("float32",) if reckoned else (self._wire.name,)

    # One step

    def ready(self) -> Grant | None:
        """Ask for the next unit of work and wait for its grant. None: the job is over (see `stop`)."""
        self._watch.ask()
        while (grant := self._control.wait_grant()) is not None and grant.initialise:
            self._initialise(grant)
        if grant is not None:
            self._watch.begin(grant)
        return grant

    def pull(self, grant: Grant) -> dict[str, Floats]:
        """The granted version: arrays by variable name. Raises Voided, Refused, Unreachable."""
        return self.plan.gather_by_name(self.pull_flat(grant))

    def push(self, grant: Grant, gradients: Mapping[str, ArrayLike]) -> None:
        """Send gradients (and, for state variables, deltas) by name; absent ones are zero.

        Raises ValueError for an unknown name or wrong shape, PayloadRefused
        for NaN and Inf, Voided when the ticket was cancelled, Refused, Unreachable.
        """
        self.push_flat(grant, self.plan.scatter_by_name(gradients))

    def pull_flat(self, grant: Grant) -> list[Floats]:
        """As `pull`, but one float32 array per server: its trainable part, then its state part."""
        return self._reader.copied(grant)

    def view_flat(self, grant: Grant, *, narrow: bool = False) -> AbstractContextManager[list[NDArray[Any]]]:
        """As `pull_flat`, but for reading within the `with` block: arrays in shared memory where they lie, uncopied.

        They are good until the block ends or the ticket is committed,
        abandoned or cancelled; then they are used again. Where the servers hold too few
        versions for every worker to read one without blocking updates, they are copied after all.
        `narrow`: what came over gRPC stays in the wire dtype (numpy's float16,
        ml_dtypes' bfloat16), for a caller that widens it on a device.
        """
        return self._reader.view(grant, narrow and self._wire.same)

    def prefetch(self, grant: Grant) -> None:
        """Ask for the next ticket while `grant`, which is read, is computed on, and fetch its version.

        Where the policy grants no ticket ahead, both come with this one's
        commit, as without. Where it does, the next contribution is one version
        staler. For the last unit of work it is not to be called. Without
        `connect(prefetch=True)` it does nothing.
        """
        self._reader.fetch_ahead(grant.ticket)

    def slot_flat(self, grant: Grant) -> list[Floats]:
        """Arrays to write the payload of `grant` into, for `push_flat` or `contribute`.

        Those in shared memory are pushed without a copy here; the server makes one. Each call may return
        the same arrays again until they are pushed. Raises Voided.
        """
        return self._writer.slots(grant)

    def push_flat(self, grant: Grant, flats: Sequence[Payload]) -> None:
        """As `push`, but one flat payload per server: gradient, then state deltas; see `psworker.data.payloads`."""
        self._writer.push(grant, flats)

    def commit(
        self,
        grant: Grant,
        *,
        samples: int,
        loss: float = math.nan,
        batch: int = 0,
        ready: bool = False,
        learning_rate: float | None = None,
        unit_ends: bool = False,
    ) -> None:
        """The pushed payload counts from now on, exactly once.

        `samples`: how many it was averaged over; `batch`: its number in this
        worker's data; `ready`: ask for the next grant in the same message;
        `learning_rate`: the optimizer's from this contribution on, which an entry of the log says. It takes the
        place of a number, not of a schedule, and a job that began with 0 keeps it.
        `unit_ends`: the grant's work unit has nothing behind this part.
        """
        told = (grant.ticket, batch, samples, loss, ready)
        self._writer.commit(Commit(*told, learning_rate=learning_rate, unit_ends=unit_ends))
        self._control.joined.set_rate(learning_rate)

    def contribute(
        self,
        grant: Grant,
        flats: Sequence[Payload],
        *,
        samples: int,
        loss: float = math.nan,
        batch: int = 0,
        ready: bool = False,
        learning_rate: float | None = None,
        unit_ends: bool = False,
    ) -> None:
        """`push_flat` and `commit` in one; with a single server also the next grant and its version.

        That saves most of a small step's time. Raises as `push_flat`.
        """
        told = (grant.ticket, batch, samples, loss, ready)
        commit = Commit(*told, learning_rate=learning_rate, unit_ends=unit_ends)
        try:
            self._writer.push_and_commit(grant, flats, commit)
        except Voided:
            self._control.joined.contributed(batch, void=samples > 0)
            raise
        self._control.joined.contributed(batch, void=False)
        self._control.joined.set_rate(learning_rate)

    def abandon(self, grant: Grant, reason: str, *, unit_ends: bool = False) -> None:
        """Give the ticket back unused. `unit_ends`: its work unit had ended before its part; else the part is dealt
        again."""
        self._control.abandon(grant.ticket, reason, unit_ends=unit_ends)
        self._watch.end()

    def cancelled(self, grant: Grant) -> bool:
        """The coordinator voided this ticket: `abandon` it at the next chance."""
        return self._control.void(grant.ticket) is not None

    def dispositions(self, grant: Grant | None = None) -> list[Disposition]:
        """What became of earlier contributions; each is returned once.

        With the `grant` of the newest commit it waits for the answer to that. If it is `cancelled`, the cancel has
        crossed the commit: the batch does not count, and is worth a ticket of its own. Nothing is waited for where
        the next ticket was granted ahead.
        """
        return self._control.dispositions(None if grant is None else grant.ticket)

    # Epochs

    def gather_epoch(
        self,
        number: int,
        layout: str,
        sums: Sequence[float],
        values: Mapping[str, float],
        yields: Callable[[], object] | None = None,
    ) -> "EpochTotals | None":
        """The sums over all workers of their epoch; waits until all have told theirs. None: the job is over.

        `number`: of this worker's epochs, from 0. `layout`: what `sums` (65,536 at most) are of, in at most
        128 letters and digits, the same for all workers. `values`: what one worker measures for all. Workers
        that leave, or have no more data, are not waited for, nor are those who themselves wait for this one's
        ticket, and nobody for ever: `EpochTotals.workers` says how many are in the sums, which are of those with the
        same layout. `yields` is called where others wait for a ticket that this worker holds, under a policy that
        counts samples: it commits a contribution of no samples, and takes the next ticket; without it the epoch ends
        without those others. A job of work units is gathered behind its stop, too, until all have left.
        Raises Refused, Unreachable.
        """
        behind = self.work is not None and self.stop is not None
        told = (self._epoch_backoff, number, layout, sums, values, yields)
        return gather(self._control, self._servers.control, *told, behind=behind)

    def tell_extent(self, epochs: int, batches: int) -> None:
        """How many batches, as `commit` numbers them, this worker has in all its epochs. `ps-lab status` then shows how
        far the job is, and how long it will take."""
        self._control.tell_extent(epochs, batches)

    # The end

    def done(self, ends: str = "") -> Stop:
        """There is no more data here. Waits until the whole job is over, which it is at once where `ends` says why:
        with the version of this moment, for all workers, as a success."""
        self._control.done(ends)
        return self._control.wait_stop()

    def pull_final(self) -> list[Floats]:
        """One flat array per server of the job's last version. Only after `stop`. Raises Unreachable; JobStopped where
        the servers have gone back to before it: a new session goes on there."""
        stop = self.stop
        assert stop is not None, "pull_final is for after the stop"
        try:
            return self._reader.final(stop)
        except Voided as error:
            raise JobStopped(
                f"version {stop.version} was the last one, and is not there any more: {error}"
            ) from error

    def pull_slots(self, slots: int, grant: Grant | None = None) -> list[list[Floats]]:
        """What the servers' optimizer remembers: of each of its `slots`, in the order of the rule, an array for each
        variable; zeros for variables that are not trained.

        At the job's last version, or while `grant` is held at its version; where others make versions meanwhile, at
        one that may be later, and not the same on each server. Raises Refused (an optimizer that remembers something
        else for each worker, no room for a copy), Unreachable.
        """
        at = grant or self.stop
        assert at is not None, "pull_slots is for a grant, or after the stop"
        found = self._servers.each(lambda shard: shard.pull_slots(slots, at.version, at.index))
        return [self.plan.gather_trained(rows) for rows in zip(*found, strict=True)]

    def report(self, metrics: Mapping[str, float], version: int | None = None) -> None:
        """Metrics of the final version, for the run's summary, after the stop; or of a `version` that was granted, for
        metrics.jsonl, while the job goes on. The latter are taken from worker 0, of rising versions."""
        if version is None:
            assert self.stop is not None, "report without a version is for after the stop"
            version = self.stop.version
        self._control.report(version, metrics)

    def at_close(self, over: Callable[[], object], unfinished: Callable[[], object]) -> None:
        """Call one of them at the end of `close`: `over` where the job is over, else `unfinished`."""
        self._at_close = over, unfinished

    def close(self, reason: str = "finished") -> None:
        """Leave the job. Open tickets are void, commits stay valid. Safe to call twice."""
        if not self._servers.closing.is_set():
            over = self.stop is not None
            self._control.leave(reason)
            self._reader.close()
            self._servers.close()
            if self._at_close is not None:
                self._at_close[not over]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = "" if error is None else str(error)
        name = "finished" if kind is None else kind.__name__
        self.close(f"{name}: {said}" if said else name)

    # Inside

    def _initialise(self, grant: Grant) -> None:
        try:
            self._writer.push(grant, self.plan.scatter(self._initial), raw=True)
        except Voided as error:
            self.abandon(grant, str(error))
            return
        self.commit(grant, samples=0)
