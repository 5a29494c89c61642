"""A worker's session with the parameter servers; usable from anybody's training loop.

The life of one step: `ready` -> `pull` -> compute -> `push` -> `commit`. Only
numpy is needed; see `examples/numpy_loop.py`.
"""

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

import grpc
import numpy as np
from numpy.typing import ArrayLike, NDArray

from pswire.addresses import Address, parse_hosts
from pswire.channels import CHANNEL_OPTIONS
from pswire.dtypes import WIRE, itemsize
from pswire.plan import VariableSpec, make_plan
from pswire.specs import specs_to_wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc
from psworker.control import Control
from psworker.errors import SessionError, Voided
from psworker.grants import Disposition, Grant, StopNotice
from psworker.retrying import Backoff, insist
from psworker.shards import TRANSPORTS, ShardClient
from psworker.sharing import Received

log = logging.getLogger("ps-worker")

R = TypeVar("R")
Floats = NDArray[np.float32]
Variables = Mapping[str, ArrayLike] | Sequence[tuple[VariableSpec, ArrayLike]]

# Until the servers say theirs.
KEEPALIVE = 10.0


def connect(
    hosts: str | Sequence[Address],
    variables: Variables,
    *,
    name: str | None = None,
    task_index: int | None = None,
    wire_dtype: str = "float32",
    server_timeout: float = 60.0,
    transport: str = "auto",
) -> "Session":
    """Join the job on `hosts` ("host:port,host:port", in task order) and open a session.

    `variables`: initial values, by name or with their specifications. The
    first worker of a job installs its values; every other one must name the
    same variables. `name` and `task_index` (which part of the data is ours)
    are chosen by the servers when None. A server that does not answer is
    tried again for `server_timeout` seconds. `transport`: "auto" shares memory
    with the servers of this machine where it can be had, "grpc" does not,
    "shared-memory" raises Refused, with the first payload, where it cannot.

    Raises Refused (another model or job), Unreachable, and ValueError for
    variables, addresses, a dtype or a transport that make no sense.
    """
    addresses = parse_hosts(hosts) if isinstance(hosts, str) else tuple(hosts)
    return Session(addresses, _specified(variables), name, task_index, wire_dtype, server_timeout, transport)


class Session:
    """An open session. Not thread-safe: one training loop uses it. Close it, or use `with`."""

    def __init__(
        self,
        hosts: tuple[Address, ...],
        variables: Sequence[tuple[VariableSpec, ArrayLike]],
        name: str | None,
        task_index: int | None,
        wire_dtype: str,
        server_timeout: float,
        transport: str = "auto",
    ) -> None:
        itemsize(wire_dtype)
        if transport not in TRANSPORTS:
            raise ValueError(f"transport: expected one of {', '.join(TRANSPORTS)}, got {transport!r}")
        self.plan = make_plan([spec for spec, _ in variables], len(hosts))
        self._initial = [np.asarray(value) for _, value in variables]
        self._wire_dtype = wire_dtype
        self._name, self._task_index = name, task_index
        self._token = secrets.token_hex(16)
        self._receipts: dict[int, list[bytes]] = {}
        # The next grant's version, when it came with the answer to a commit.
        self._ahead: dict[int, list[Received]] = {}
        self._closing = threading.Event()
        # Control messages never queue behind payloads: each server's data has its own connection.
        self._channels = [_channel(address) for address in (hosts[0], *hosts)]
        self._join_stub = coordinator_pb2_grpc.CoordinatorStub(self._channels[0])
        self._backoff = Backoff(0, hosts[0], server_timeout, self._closing)
        self._shards = [
            ShardClient(
                server,
                address,
                self._channels[server + 1],
                self.plan,
                wire_dtype,
                server_timeout,
                self._closing,
                transport,
            )
            for server, address in enumerate(hosts)
        ]
        self._pool = ThreadPoolExecutor(len(hosts), thread_name_prefix="shard") if len(hosts) > 1 else None
        try:
            self._control = Control(self._channels[0], self._join, self._token, self._backoff)
        except BaseException:
            self._release()
            raise

    # What the servers said at Join

    @property
    def job(self) -> str:
        return self._control.reply.job

    @property
    def worker(self) -> str:
        """This worker's name."""
        return self._control.reply.worker

    @property
    def worker_index(self) -> int:
        return self._control.reply.worker_index

    @property
    def worker_count(self) -> int:
        """Workers that the job was started for."""
        return self._control.reply.worker_count

    @property
    def seed(self) -> int:
        return self._control.reply.seed

    @property
    def next_batch(self) -> int:
        """The first batch that no incarnation of this worker has committed: where a restart goes on."""
        return self._control.reply.next_batch

    @property
    def stop(self) -> StopNotice | None:
        """Set once the job is over."""
        return self._control.stop

    @property
    def transport(self) -> tuple[str, ...]:
        """How payloads travel, by server: "grpc" or "shared-memory"; "undecided" before the first one."""
        return tuple(shard.transport for shard in self._shards)

    # One step

    def ready(self) -> Grant | None:
        """Ask for the next unit of work and wait for its grant. None: the job is over (see `stop`)."""
        while True:
            grant = self._control.ask()
            if grant is None or not grant.initialise:
                return grant
            self._initialise(grant)

    def pull(self, grant: Grant) -> dict[str, Floats]:
        """The granted version: arrays by variable name. Raises Voided, Refused, Unreachable."""
        arrays = self.plan.gather(self.pull_flat(grant))
        return {spec.name: array for spec, array in zip(self.plan.variables, arrays, strict=True)}

    def push(self, grant: Grant, gradients: Mapping[str, ArrayLike]) -> None:
        """Send gradients (and, for state variables, deltas) by name; absent ones are zero.

        Raises ValueError for an unknown name or wrong shape, PayloadRefused
        for NaN and Inf, Voided when the ticket was cancelled, Refused, Unreachable.
        """
        known = {spec.name for spec in self.plan.variables}
        unknown = sorted(set(gradients) - known)
        if unknown:
            raise ValueError(f"no variable is named {unknown[0]!r}; expected some of {sorted(known)}")
        arrays = [gradients.get(s.name, np.zeros(s.shape, np.float32)) for s in self.plan.variables]
        self.push_flat(grant, self.plan.scatter(arrays))

    def pull_flat(self, grant: Grant) -> list[Floats]:
        """As `pull`, but one float32 array per server: its trainable part, then its state part."""
        ahead = self._ahead.pop(grant.ticket, None)
        if ahead is not None:
            return [received.copied() for received in ahead]
        return self._each(lambda shard: shard.pull(grant.ticket, grant.version, grant.index).copied())

    @contextmanager
    def view_flat(self, grant: Grant) -> Iterator[list[Floats]]:
        """As `pull_flat`, but arrays in shared memory are read where they lie, uncopied, within the `with` block.

        They are read-only, and good until the block ends or the ticket is
        committed, abandoned or cancelled. Where the servers hold too few
        versions for every worker to read one at leisure, they are copied after all.
        """
        received = self._ahead.pop(grant.ticket, None)
        if received is None:
            received = self._each(lambda shard: shard.pull(grant.ticket, grant.version, grant.index))
        try:
            yield [
                r.values if self._at_leisure(shard) else r.copied()
                for r, shard in zip(received, self._shards, strict=True)
            ]
        finally:
            for each in received:
                each.release()

    def _at_leisure(self, shard: ShardClient) -> bool:
        """Every worker but the one whose update is made may hold a version, besides the newest and the next."""
        return self.worker_count < shard.arena_versions

    def slot_flat(self, grant: Grant) -> list[Floats]:
        """Arrays to write the payload of `grant` into, for `push_flat` or `contribute`.

        Those in shared memory are pushed without a copy. Each call may return
        the same arrays again until they are pushed. Raises Voided.
        """
        self._check(grant)
        return [shard.slot() for shard in self._shards]

    def push_flat(self, grant: Grant, flats: Sequence[Floats]) -> None:
        """As `push`, but one float32 array per server: gradient, then state deltas."""
        if len(flats) != len(self._shards):
            raise ValueError(f"expected {len(self._shards)} payloads, one per server, got {len(flats)}")
        self._check(grant)
        self._receipts = {
            grant.ticket: self._each(lambda shard: shard.push(grant.ticket, flats[shard.server], grant.index))
        }

    def commit(
        self,
        grant: Grant,
        *,
        samples: int,
        loss: float = math.nan,
        norm: float = math.nan,
        batch: int = 0,
        ready: bool = False,
    ) -> None:
        """The pushed payload counts from now on, exactly once.

        `samples`: how many it was averaged over; `batch`: its number in this
        worker's data; `ready`: ask for the next grant in the same message.
        """
        self._control.commit(
            pb.Commit(
                ticket=grant.ticket,
                batch=batch,
                samples=samples,
                loss=loss,
                norm=norm,
                receipts=self._receipts.pop(grant.ticket, []),
                ready=ready,
            )
        )

    def contribute(
        self,
        grant: Grant,
        flats: Sequence[Floats],
        *,
        samples: int,
        loss: float = math.nan,
        norm: float = math.nan,
        batch: int = 0,
        ready: bool = False,
    ) -> None:
        """`push_flat` and `commit` in one; with a single server also the next grant and its version.

        That saves most of a small step's time. Raises as `push_flat`.
        """
        if len(self._shards) > 1:
            self.push_flat(grant, flats)
            self.commit(grant, samples=samples, loss=loss, norm=norm, batch=batch, ready=ready)
            return
        self._check(grant)
        commit = pb.Commit(
            ticket=grant.ticket, batch=batch, samples=samples, loss=loss, norm=norm, ready=ready
        )
        control, shard = self._control, self._shards[0]
        control.expect(commit)
        try:
            events, version = shard.step(grant.ticket, flats[0], grant.index, commit, control.hello)
        except SessionError:
            control.unexpect(grant.ticket)
            raise
        except grpc.RpcError:
            # The answer is lost, perhaps the commit too: both steps again, which counts once.
            self._contribute_again(grant, flats, commit)
            return
        granted = [event.grant.ticket for event in events if event.HasField("grant")]
        if granted and version is not None:
            self._ahead = {granted[0]: [version]}
        control.hear(events)

    def abandon(self, grant: Grant, reason: str) -> None:
        """Give the ticket back unused."""
        self._control.abandon(grant.ticket, reason)

    def cancelled(self, grant: Grant) -> bool:
        """The coordinator voided this ticket: `abandon` it at the next chance."""
        return self._control.void(grant.ticket) is not None

    def dispositions(self) -> list[Disposition]:
        """What became of earlier contributions; each is told once."""
        return self._control.dispositions()

    # The end

    def done(self) -> StopNotice:
        """There is no more data here. Waits until the whole job is over."""
        self._control.done()
        return self._control.wait_stop()

    def pull_final(self) -> list[Floats]:
        """One flat array per server of the job's last version. Only after `stop`."""
        stop = self.stop
        assert stop is not None, "pull_final is for after the stop"
        return self._each(lambda shard: shard.pull(0, stop.version, stop.index).copied())

    def report(self, metrics: Mapping[str, float]) -> None:
        """Metrics of the final version, for the run's summary."""
        assert self.stop is not None, "report is for after the stop"
        self._control.report(pb.Report(version=self.stop.version, metrics=dict(metrics)))

    def close(self, reason: str = "finished") -> None:
        """Leave the job. Open tickets are void, commits stay valid. Safe to call twice."""
        if not self._closing.is_set():
            self._control.leave(reason)
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("finished" if kind is None else f"{kind.__name__}: {error}")

    # Inside

    def _join(self) -> pb.JoinReply:
        request = pb.JoinRequest(
            worker=self._name or "",
            session=self._token,
            variables=specs_to_wire(self.plan.variables),
            plan=self.plan.fingerprint,
            servers=len(self._shards),
            wire_dtype=WIRE[self._wire_dtype],
            task_index=self._task_index,
        )
        reply = insist(lambda: self._join_stub.Join(request), self._backoff)
        self._backoff.reset()
        # Rejoining is for the same name and part of the data.
        self._name, self._task_index = reply.worker, reply.worker_index
        for shard in self._shards:
            shard.job, shard.worker = reply.job, reply.worker
            shard.incarnation, shard.voucher = reply.incarnation, reply.voucher
        return reply

    def _initialise(self, grant: Grant) -> None:
        try:
            self.push_flat(grant, self.plan.scatter(self._initial))
        except Voided as error:
            self.abandon(grant, str(error))
            return
        self.commit(grant, samples=0)

    def _contribute_again(self, grant: Grant, flats: Sequence[Floats], commit: pb.Commit) -> None:
        try:
            self.push_flat(grant, flats)
        except Voided:
            # Its payload is final, or it was cancelled: the answer to the commit says which.
            log.info("ticket %d was settled while its answer was lost", grant.ticket)
        commit.receipts.extend(self._receipts.pop(grant.ticket, []))
        self._control.commit(commit)

    def _check(self, grant: Grant) -> None:
        reason = self._control.void(grant.ticket)
        if reason is not None:
            raise Voided(f"ticket {grant.ticket} was cancelled: {reason}")

    def _each(self, call: Callable[[ShardClient], R]) -> list[R]:
        if self._pool is None:
            return [call(self._shards[0])]
        calls = [self._pool.submit(call, shard) for shard in self._shards]
        # A server's exchange serves one request at a time: after a failure, too, nothing stays under way.
        wait(calls)
        return [made.result() for made in calls]

    def _release(self) -> None:
        self._closing.set()
        for shard in self._shards:
            shard.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for channel in self._channels:
            channel.close()


def _channel(address: Address) -> grpc.Channel:
    options = [*CHANNEL_OPTIONS(KEEPALIVE), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.insecure_channel(str(address), options)


def _specified(variables: Variables) -> list[tuple[VariableSpec, ArrayLike]]:
    if not isinstance(variables, Mapping):
        return list(variables)
    arrays = {name: np.asarray(value) for name, value in variables.items()}
    return [(VariableSpec(name, a.shape, str(a.dtype)), a) for name, a in arrays.items()]
