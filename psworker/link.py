"""A worker's link to the parameter servers: the verbs of the protocol, from which `psworker.turn` makes turns.

One step is `ready` -> `pull` -> compute -> `contribute`. Only numpy is needed.
"""

import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.model.plan import VariableSpec, make_plan
from pswire.model.rows import NO_ROWS, KeysByName, RowLayout, RowsByName
from pswire.model.tables import TableSpec, compiled_batches, joined_parts, unique
from pswire.transport.wire import wire_named
from pswire.v1 import coordinator_pb2 as pb
from psworker.connection import Connection
from psworker.control.backoff import Backoff, Contact
from psworker.control.epochs import EpochTotals, gather
from psworker.control.joining import FIRST, JobInfo, Phase, Registration, work_units
from psworker.control.stream import SessionStream
from psworker.data.carrier import Settings
from psworker.data.contributor import Contributor
from psworker.data.payloads import Floats, Payload
from psworker.data.reader import WeightReader
from psworker.data.shard_group import ShardGroup
from psworker.data.timing import Stopwatch
from psworker.engine import Commit, Disposition, Grant, Stop
from psworker.errors import JobStopped, Refused, Voided
from psworker.local import PLAIN, LocalRuleError, LocalWork, build
from psworker.work import WorkUnits


class Link:
    """An open link. Not thread-safe: one training loop uses it. Close it, or use `with`.

    `opened`: how many sessions this process has opened so far.
    """

    opened: ClassVar[int] = 0

    def __init__(
        self,
        where: Connection,
        variables: Sequence[tuple[VariableSpec, ArrayLike]],
        *,
        prefetch: bool = False,
        optimizer: Mapping[str, Any] | None = None,
        work: WorkUnits | None = None,
        epochs: int = 1,
        phase: Phase = FIRST,
        computes: str = "",
        function: str = "",
        tables: Sequence[TableSpec] = (),
    ) -> None:
        """`psworker.connect` opens links, and describes the parameters. With replicas a link follows the server that
        serves a part."""
        hosts, wire, credentials = where.hosts, wire_named(where.wire_dtype), where.credentials
        self.plan, self.work = make_plan([spec for spec, _ in variables], where.parts, tables), work
        self._layout = RowLayout(self.plan)
        self._initial = [np.asarray(value) for _, value in variables]
        self._wire, self._strict = wire, where.transport == "shared-memory"
        for codec in (wire.up, wire.deltas):
            if codec is not None:
                codec.prepare()
        if self.plan.tables:
            compiled_batches()
        session = secrets.token_hex(16)
        settings = Settings(
            self.plan, wire, where.server_timeout, where.transport, credentials, session=session
        )
        servers = self._servers = ShardGroup(hosts, settings, replicas=where.replicas)
        contact = Contact(hosts[0], credentials)
        backoff, self._epoch_backoff = (
            Backoff(
                0, hosts[0], where.server_timeout, servers.closing, contact, settings.silent, servers.seeker()
            )
            for _ in range(2)
        )
        registration = Registration(
            servers.control,
            backoff,
            self.plan,
            wire,
            worker=where.name,
            task_index=where.task_index,
            session=session,
            optimizer="" if optimizer is None else json.dumps(optimizer),
            work=None if work is None else work_units(work, epochs),
            job=phase.job,
            begins_next=phase.begins_next,
            stays=phase.stays,
            computes=computes,
            function=function,
        )
        try:
            stream = self._stream = SessionStream(
                lambda: servers.control,
                registration,
                servers.admit,
                backoff,
                servers.give_up,
                numbered=work is None,
            )
        except BaseException:
            servers.close()
            raise
        Link.opened += 1
        self._joined = stream.joined
        servers.explain, servers.void = stream.explained, stream.void
        servers.on_transport = stream.announce_transports
        self._watch = Stopwatch()
        self._reader = WeightReader(servers, stream, self._watch, prefetch)
        self._contributor = Contributor(servers, stream, self._reader, self._watch, self._layout, wire)
        # Log index of the newest grant.
        self._seen = 0
        self._at_close: tuple[Callable[[], object], Callable[[], object]] | None = None

    # The job

    @property
    def info(self) -> JobInfo:
        """The job and this worker's place in it, as of the newest Join."""
        return self._joined.info

    def goes_back(self) -> None:
        """Declare that this loop can go back in its data.

        `ready` and `done` then raise RolledBack when the servers went back to a checkpoint and undid commits of this
        session. Without it a warning says how many.
        """
        self._joined.goes_back = True

    def local_work(self) -> LocalWork:
        """Return the local rule, with an empty memory. Raises Refused for a rule that this release does not have."""
        rule = self._joined.reply.local_rule
        try:
            made = build(rule.name, rule.knobs, [shard.trainable for shard in self.plan.shards], self.plan)
        except LocalRuleError as error:
            raise Refused(str(error)) from error
        return LocalWork(made, self.info.membership)

    @property
    def stop(self) -> Stop | None:
        """Set once the job is over."""
        return self._stream.stop

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtype of the weights that `psworker.loop` gives to a trainer: "float32" from shared memory and for a
        local rule, else the wire dtype."""
        float32 = self._strict or self.info.local_rule != PLAIN or not self._wire.same
        return ("float32",) if float32 else (self._wire.down.name,)

    # One step: grant, pull

    def ready(self) -> Grant | None:
        """Ask for the next unit of work and wait for its grant. None: the job is over (see `stop`)."""
        self._watch.ask()
        while (grant := self._stream.wait_grant()) is not None and grant.initialise:
            self._initialise(grant)
        if grant is not None:
            self._watch.begin(grant)
            self._seen = grant.index
        return grant

    @overload
    def pull(self, grant: Grant) -> dict[str, Floats]: ...
    @overload
    def pull(
        self, grant: Grant, rows: Mapping[str, ArrayLike]
    ) -> tuple[dict[str, Floats], dict[str, Floats]]: ...
    def pull(
        self, grant: Grant, rows: Mapping[str, ArrayLike] | None = None
    ) -> dict[str, Floats] | tuple[dict[str, Floats], dict[str, Floats]]:
        """Return the granted version: arrays by variable name. Raises Voided, Refused, Unreachable.

        `rows`: ids by table, in any order and shape, also several times; then the result is a pair, and its second part
        has float32 rows by table, of the shape of the ids, with a last axis of dim.
        """
        if rows is None:
            return self.plan.gather_by_name(self.pull_flat(grant))
        found = {name: unique(ids) for name, ids in rows.items()}
        keys = {name: each for name, (each, _) in found.items()}
        self.want_rows(keys)
        weights = self.plan.gather_by_name(self.pull_flat(grant))
        values = self.pull_rows(grant, keys)
        return weights, {
            name: values[name][inverse].reshape(*np.shape(rows[name]), values[name].shape[1])
            for name, (_, inverse) in found.items()
        }

    def want_rows(self, keys: KeysByName) -> None:
        """Read these rows of tables together with every version that is pulled from now on, in the same message."""
        self._reader.wanted = self._layout.wanted(keys) if keys else ()

    def pull_rows(self, grant: Grant, keys: KeysByName) -> dict[str, Floats]:
        """Return rows of tables at the granted version, in the order of keys: float32 of shape (n, dim).

        Costs no message if they came with the version (`want_rows`, or `ahead` of `contribute`). Raises ValueError for
        unknown tables and unsorted keys, Voided (also if the ticket has read other rows, and the version is gone),
        Refused, Unreachable.
        """
        return self._layout.joined(keys, self._reader.rows(grant, self._layout.wanted(keys)))

    def lookup(self, table: str, ids: ArrayLike) -> tuple[Floats, int]:
        """Return rows at the newest version, of the shape of `ids` and a last axis of dim, and that version.

        Makes no rows. Call it after the first `ready`.

        Several servers may be at different versions; the oldest is returned. Raises ValueError for an unknown table,
        Refused, Unreachable.
        """
        keys, inverse = unique(ids)
        rows, version = self._newest({table: keys})
        return rows[table][inverse].reshape(*np.shape(ids), rows[table].shape[1]), version

    def newest_rows(self, keys: KeysByName) -> dict[str, Floats]:
        """Look sorted unique keys of several tables up, as `lookup` does ids of one."""
        return self._newest(keys)[0]

    def _newest(self, keys: KeysByName) -> tuple[dict[str, Floats], int]:
        wanted = self._layout.wanted(keys)
        # The servers know this member by then, and after the stop they have the last version.
        after = self._seen if self.stop is None else self.stop.index
        read = self._servers.each(lambda shard: shard.pull_rows(0, 0, after, wanted[shard.server]))
        asked = [each.version for each, own in zip(read, wanted, strict=True) if any(k.size for k in own)]
        return self._layout.joined(keys, read), min(asked, default=0)

    def pull_flat(self, grant: Grant) -> list[Floats]:
        """Pull one float32 array per server: its trainable part, then its state part."""
        return self._reader.copied(grant)

    def view_flat(self, grant: Grant, *, narrow: bool = False) -> AbstractContextManager[list[NDArray[Any]]]:
        """Hold what `pull_flat` returns for reading within the `with` block: shared memory is not copied.

        The arrays are valid until the block ends or the ticket is committed, abandoned or cancelled. If the servers
        hold too few versions for every worker to read one without blocking updates, they are copied after all.
        `narrow`: what came over gRPC stays in the wire dtype (numpy's float16, ml_dtypes' bfloat16), for a caller that
        widens it on a device.
        """
        return self._reader.view(grant, narrow and self._wire.same)

    def prefetch(self, grant: Grant, rows: KeysByName = NO_ROWS) -> None:
        """Ask for the next ticket while the loop computes on `grant`, which it has read, and fetch its version, with
        the rows of tables that its batch needs.

        If the policy grants no ticket ahead, both come with this one's commit, as without prefetch. If it does, the
        next contribution is one version staler. Do not call it for the last unit of work. No-op without
        `connect(prefetch=True)`.
        """
        self._reader.fetch_ahead(grant.ticket, self._layout.wanted(rows) if rows else ())

    @property
    def prefetches(self) -> bool:
        """Whether `prefetch` fetches anything: connect(prefetch=True)."""
        return self._reader.prefetches

    def summed(self, rows: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> RowsByName:
        """Return sums of gradients by key, of ids and gradients by table. Raises ValueError for an unknown table."""
        return self._layout.summed(rows)

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
        rows: RowsByName = NO_ROWS,
        ahead: KeysByName = NO_ROWS,
    ) -> None:
        """Push one flat payload per server (gradient, then state deltas; see `psworker.data.payloads`) and commit it,
        exactly once. With a single server that is one round trip, which also brings the next grant and its version.

        `samples`: how many the gradients were averaged over. `batch`: its number in this worker's data. `ready`: ask
        for the next grant, too. `learning_rate`: the optimizer's from this contribution on, as an entry of the log. It
        replaces a number, not a schedule, and a job that began with 0 keeps it. `unit_ends`: the grant's work unit has
        no part after this one. `rows`: sums of gradients by key. `ahead`: rows to read with the next version, as after
        `want_rows`.

        Raises ValueError for a wrong number of payloads, PayloadRefused for NaN and Inf, Voided when the ticket was
        cancelled, Refused, Unreachable.
        """
        facts = (grant.ticket, batch, samples, loss, ready)
        commit = Commit(*facts, learning_rate=learning_rate, unit_ends=unit_ends)
        if ahead or self._reader.wanted:
            self.want_rows(ahead)
        try:
            self._contributor.contribute(grant, flats, commit, rows)
        except Voided:
            self._joined.contributed(batch, void=samples > 0)
            raise
        self._joined.contributed(batch, void=False)
        self._joined.set_rate(learning_rate)

    def abandon(self, grant: Grant, reason: str, *, unit_ends: bool = False) -> None:
        """Give the ticket back unused. `unit_ends`: its work unit ended before its part; else the part is dealt
        again."""
        self._stream.tell(lambda engine: engine.abandon(grant.ticket, reason, unit_ends=unit_ends))
        self._watch.end()

    def cancelled(self, grant: Grant) -> bool:
        """Whether the coordinator voided this ticket: `abandon` it at the next chance."""
        return self._stream.void(grant.ticket) is not None

    def dispositions(self) -> list[Disposition]:
        """Return what became of earlier contributions; each is returned once."""
        return self._stream.dispositions()

    def _initialise(self, grant: Grant) -> None:
        try:
            receipts = self._contributor.push(grant, self.plan.scatter(self._initial), raw=True)
            self._contributor.commit(grant, Commit(grant.ticket, 0, 0), receipts)
        except Voided as error:
            self.abandon(grant, str(error))

    # Epochs and progress

    def gather_epoch(
        self,
        number: int,
        layout: str,
        sums: Sequence[float],
        values: Mapping[str, float],
        yields: Callable[[], object] | None = None,
    ) -> "EpochTotals | None":
        """Wait until all workers have sent their sums of this epoch, and return the totals. None: the job is over.

        `number`: of this worker's epochs, from 0. `layout`: names what `sums` (at most 65,536) are, in at most 128
        letters and digits, the same for all workers; only sums of one layout are added. `values`: what one worker
        measures for all. Does not wait for workers that leave or have no more data, nor for those who wait for a ticket
        that this worker holds: `EpochTotals.workers` says how many are in the sums. `yields`: called when others wait
        for such a ticket under a policy that counts samples; it commits a contribution of no samples and takes the next
        ticket. A job of work units is gathered after its stop, too, until all workers have left.
        Raises Refused, Unreachable.
        """
        after_stop = self.work is not None and self.stop is not None
        facts = (number, layout, sums, values, yields)
        return gather(self._stream, self._epoch_backoff, *facts, after_stop=after_stop)

    def tell_extent(self, epochs: int, batches: int) -> None:
        """Tell the servers how many batches, as `commit` numbers them, this worker has in all its epochs.

        `ps-lab status` then shows the job's progress, and an estimate of the time left.
        """
        self._stream.announce("extent", pb.SessionRequest(extent=pb.Extent(epochs=epochs, batches=batches)))

    def report(self, metrics: Mapping[str, float], version: int | None = None) -> None:
        """Report metrics of the final version, after the stop, for the run's summary.

        With a granted `version`: while the job goes on, for metrics.jsonl. Those are accepted from worker 0, with
        rising versions.
        """
        if version is None:
            version = self._last("report without a version").version
        self._stream.report(version, metrics)

    # The end

    def done(self, ends: str = "") -> Stop:
        """Say that there is no more data here, and wait until the whole job is over.

        `ends`: a reason to end the job at once for all workers, as a success, with its present version. Under a policy
        that tolerates bad workers, more of them must ask than it tolerates.
        """
        self._stream.tell(lambda engine: engine.done(ends))
        return self._stream.wait_stop()

    def pull_final(self) -> list[Floats]:
        """Return the job's last version as one flat array per server. Only after `stop`.

        Raises Unreachable, and JobStopped if the servers went back to before that version: a new session continues
        there.
        """
        stop = self._last("pull_final")
        try:
            return self._reader.final(stop)
        except Voided as error:
            raise JobStopped(
                f"version {stop.version} was the last one, and is not there any more: {error}"
            ) from error

    def pull_slots(self, slots: int, grant: Grant | None = None) -> list[list[Floats]]:
        """Return the state of the servers' optimizer: for each of its `slots`, in the rule's order, an array for each
        variable; zeros for variables that are not trained.

        At the job's last version, or at that of `grant` while it is held; if others make versions meanwhile, possibly
        at a later one, which may differ between servers. Raises Refused (an optimizer with state for each worker, no
        room for a copy), Unreachable.
        """
        at = grant or self._last("pull_slots without a grant")
        found = self._servers.each(lambda shard: shard.pull_slots(slots, at.version, at.index))
        return [self.plan.gather_trained(rows) for rows in zip(*found, strict=True)]

    def pull_table(self, table: str, grant: Grant | None = None) -> tuple[NDArray[np.int64], Floats]:
        """Return ids and rows, [n, dim], of a whole table, in the order of the keys of the ids.

        At the job's last version, or at that of `grant` while it is held; if others make versions meanwhile, possibly
        at a later one, which may differ between servers. Raises ValueError for an unknown table, Refused (no room for a
        copy), Unreachable.
        """
        number = self._layout.number(table)
        at = grant or self._last("pull_table without a grant")
        parts = self._servers.each(lambda shard: shard.pull_table(number, at.version, at.index))
        return joined_parts(self.plan.tables[number], parts)

    def _last(self, call: str) -> Stop:
        """Return how the job ended. Raises RuntimeError while it goes on."""
        if self.stop is None:
            raise RuntimeError(f"{call}: the job goes on: expected it after the stop")
        return self.stop

    def at_close(self, over: Callable[[], object], unfinished: Callable[[], object]) -> None:
        """Call `over` at the end of `close` if the job is over by then, else `unfinished`."""
        self._at_close = over, unfinished

    def close(self, reason: str = "finished") -> None:
        """Leave the job. Open tickets become void, commits stay valid. Safe to call twice."""
        if not self._servers.closing.is_set():
            over = self.stop is not None
            self._stream.leave(reason)
            self._reader.close()
            self._servers.close()
            if self._at_close is not None:
                self._at_close[not over]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name, message = "finished" if kind is None else kind.__name__, "" if error is None else str(error)
        self.close(f"{name}: {message}" if message else name)
