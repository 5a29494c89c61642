"""The method Follow on a shard server: receives the decision stream and executes it in order."""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from psserver.checkpoint import CheckpointError, Store, part_of
from psserver.optimizers import OptimizerError
from psserver.optimizers import build as build_optimizer
from psserver.policies.declarations import from_config
from psserver.receipts import opens
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.life.successor import numbered
from psserver.service.net.registration import Call, bounded, parsed
from psserver.service.net.status import memory_to_wire
from psserver.service.store.host import ShardHost
from psserver.service.store.resume_point import FOLDER
from psserver.service.store.shard_part import Part
from psserver.shard import Apply, Order
from pswire.exits import ExitCode
from pswire.generations import follows
from pswire.logs.events import event
from pswire.messages import ORDERS, specs_from_wire
from pswire.model.plan import Plan, PlanError, make_plan
from pswire.model.tables import tables_from_text
from pswire.records import StateError
from pswire.transport.wire import deltas_numbered
from pswire.v1 import shard_pb2

log = logging.getLogger("ps-server")

# Seconds between two reports of progress while a long order is executed.
TELL_EVERY = 1.0
# Seconds between two reports of memory.
MEMORY_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a shard server may end. `recover`: seconds that it waits for another coordinator; 0: it ends."""

    exit_code: ExitCode
    reason: str
    recover: float = 0.0
    # Not 0: this server begins again, in its folder of that number.
    next_folder: int = 0


class FollowRpc:
    """The method Follow, for one coordinator at a time. When its stream ends, this server's job ends too."""

    def __init__(
        self,
        host: ShardHost,
        servers: int,
        job_secret: bytes = b"",
        ended: Callable[[], None] = lambda: None,
        former: str = "",
        out: Path | None = None,
    ) -> None:
        """Follow the coordinator of `host`'s job. `ended` is called when this server may end; `ending` says why.
        `former`: the generation that this process followed before. `out`: the run folder."""
        self._former, self._out = former, out
        self._host = host
        self._servers = servers
        self._secret = job_secret
        self._ended = ended
        # The number of the next log entry, and the answer to the last trial.
        self._next_entry = 0
        self._answer = shard_pb2.FollowReply()
        # Measures of updates since the last reply.
        self._measures: list[shard_pb2.Measure] = []
        # When memory was last reported.
        self._memory_reported_at = 0.0
        # Seconds to wait for another coordinator, as the present one says.
        self._recover = 0.0
        # Set once.
        self.ending: Ending | None = None

    async def follow(self, call: Call) -> None:
        # A call that sends nothing owns nothing. The first one that opens with a valid proof is the coordinator.
        first = await _next(call)
        if first is None or first.WhichOneof("message") != "open":
            raise invalid("expected a FollowRequest with open first")
        self._open(first.open, call)
        try:
            await call.reply(self._progress())
            while self.ending is None and (request := await _next(call)) is not None:
                await self._take(request, call)
                await call.reply(self._progress())
        finally:
            self._end(ExitCode.UNREACHABLE, "the coordinator (server 0) is gone", recover=self._recover)
            # The server's end cuts all calls; this one needs its status first.
            call.when_over(self._ended)

    def _open(self, message: shard_pb2.Open, call: Call) -> None:
        """Accept the coordinator, at most once in this server's life. Raises Refused, with nothing changed."""
        if not opens(self._secret, message.job, message.task_index, message.secret, message.proof):
            raise precondition(
                f"server {self._host.server} takes orders from a coordinator with its own job secret only: "
                "give all servers of the job the same PS_JOB_SECRET (ps-lab run does)"
            )
        if self.ending is not None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"server {self._host.server} ends its job: wait")
        if message.job == self._former or follows(self._former, message.job):
            raise precondition(
                f"server {self._host.server} has followed {self._former}: expected a later generation of that job, "
                f"got {message.job}, which is over"
            )
        if follows(message.job, self._host.job):
            # What this server holds is void. It begins again, and takes the next call.
            self._end(
                ExitCode.UNREACHABLE, f"the job goes on as {message.job}", recover=message.recover_timeout
            )
            call.when_over(self._ended)
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"server {self._host.server} lets go of {self._host.job}: try again",
            )
        if self._host.job:
            raise precondition(
                f"server {self._host.server} follows a coordinator already, that of job {self._host.job}"
            )
        if (message.task_index, message.servers) != (self._host.server, self._servers):
            raise precondition(
                f"this is server {self._host.server} of {self._servers}, but the coordinator takes it for "
                f"server {message.task_index} of {message.servers}: give all servers the same --ps-hosts"
            )
        self._recover = message.recover_timeout
        if self._out is not None:
            self._host.saver.store = Store(numbered(self._out, message.folder or 1) / FOLDER)
        self._host.open(message.job, message.secret)
        log.info("following job %s", message.job, extra=event("following", job=message.job))

    async def _take(self, request: shard_pb2.FollowRequest, call: Call) -> None:
        match request.WhichOneof("message"):
            case "configure":
                await self._configure(request.configure)
            case "decisions":
                if self._host.state.failure is not None:
                    # The coordinator knows of the failure and decides how this ends.
                    return
                decisions = request.decisions.decisions
                orders = [(d.index, _order(d)) for d in decisions]
                if not orders:
                    # The coordinator asks.
                    self._memory_reported_at = 0.0
                expected = self._host.state.executed
                if orders and orders[0][0] != expected:
                    raise invalid(f"expected entry {expected} of the decision log next, got {orders[0][0]}")
                self._host.orders.submit(orders)
                if orders:
                    self._next_entry = orders[-1][0] + 1
                    while not await self._host.execute(self._next_entry, TELL_EVERY):
                        # A long order: report progress.
                        await call.reply(self._progress())
            case "trial":
                await self._try(request.trial)
            case "shutdown":
                end = request.shutdown
                self._end(_exit_code(end.exit_code), end.reason, next_folder=end.next_folder)
            case other:
                raise invalid(f"expected configure, decisions, trial or shutdown, got {other}")

    async def _try(self, trial: shard_pb2.Trial) -> None:
        if self._host.state.failure is not None:
            return
        finite, largest = await self._host.try_update(
            self._next_entry, ORDERS.codecs[Apply].from_wire(trial.update)
        )
        self._answer = shard_pb2.FollowReply(
            trial=trial.number, finite=finite, largest=largest if finite else 0.0
        )

    async def _configure(self, message: shard_pb2.Configure) -> None:
        try:
            tables = tables_from_text(message.tables)
            plan = make_plan(specs_from_wire(message.variables), self._servers, tables)
            optimizer = build_optimizer(json.loads(message.optimizer))
            tensors = from_config(json.loads(message.tensors))
            deltas = deltas_numbered(message.deltas)
        except (PlanError, OptimizerError, ValueError, TypeError) as error:
            raise invalid(f"cannot configure server {self._host.server}: {error}") from error
        if not hmac.compare_digest(plan.fingerprint, message.plan):
            raise precondition(
                f"the coordinator's plan is {message.plan}, ours for the same variables is {plan.fingerprint}: "
                "run the same version of ps-server everywhere"
            )
        try:
            self._host.configure(plan, optimizer, tensors, message.checkpoints, deltas, message.measures)
            self._host.orders.measured = self._measured
        except MemoryError as error:
            raise Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"server {self._host.server} has no memory for its part of the model, "
                f"{plan.shards[self._host.server].nbytes} bytes",
            ) from error
        if message.checkpoint:
            await self._take_up(message, plan)
        fields = event("shard_ready", bytes=self._host.nbytes, variables=len(plan.variables))
        log.info("holds %d bytes of %d variables", self._host.nbytes, len(plan.variables), extra=fields)

    def _measured(self, version: int, square: float) -> None:
        self._measures.append(shard_pb2.Measure(version=version, square=square))

    async def _take_up(self, message: shard_pb2.Configure, plan: Plan) -> None:
        """Restore this server's part of a checkpoint. Raises Refused."""
        store = self._host.saver.store
        try:
            if store is None:
                raise CheckpointError(
                    "it has no folder: give every server the same --out, on a disk that all share"
                )
            state = await asyncio.to_thread(part_of, store, message.checkpoint, plan, self._host.server)
            self._host.take_up(state, message.entries)
        except (CheckpointError, StateError) as error:
            raise precondition(
                f"server {self._host.server} cannot take up {message.checkpoint}: {error}"
            ) from error
        self._next_entry = message.entries

    def _progress(self) -> shard_pb2.FollowReply:
        host = self._host
        reply = shard_pb2.FollowReply(
            executed=host.state.executed,
            error=host.state.failure or "",
            bytes=host.nbytes,
            diverged=host.state.diverged,
            trial=self._answer.trial,
            finite=self._answer.finite,
            largest=self._answer.largest,
        )
        reply.saved.extend(map(_saved, host.saver.parts.values()))
        reply.measures.extend(self._measures)
        self._measures.clear()
        if time.monotonic() - self._memory_reported_at >= MEMORY_EVERY:
            self._memory_reported_at = time.monotonic()
            reply.memory.CopyFrom(memory_to_wire(host.memory_use(), host.table_figures()))
        return reply

    def _end(self, code: ExitCode, reason: str, *, recover: float = 0.0, next_folder: int = 0) -> None:
        """Record why this server may end. The first reason counts: an older coordinator must not end what a newer
        one continues."""
        if self.ending is None:
            self.ending = Ending(code, reason, recover, next_folder)


class FollowNobody:
    """The method Follow on the coordinator's own server."""

    async def follow(self, call: Call) -> None:
        """Refuse the call."""
        await _next(call)
        raise precondition(
            "server 0 hosts the coordinator and follows nobody: expected Follow at servers 1 and up"
        )


async def _next(call: Call) -> shard_pb2.FollowRequest | None:
    message = await call.receive()
    return None if message is None else bounded(parsed(shard_pb2.FollowRequest, message))


def _order(decision: shard_pb2.Decision) -> Order:
    order = ORDERS.from_wire(decision)
    if order is None:
        raise invalid(
            f"decision {decision.index}: expected one of a kind that this server knows, got another"
        )
    return order


def _saved(part: Part) -> shard_pb2.Saved:
    files = [shard_pb2.SavedFile(name=n, bytes=f.bytes, sha256=f.sha256) for n, f in part.files.items()]
    return shard_pb2.Saved(entry=part.entry, files=files, error=part.error[:1000])


def _exit_code(number: int) -> ExitCode:
    try:
        return ExitCode(number)
    except ValueError as error:
        raise invalid(f"shutdown: expected a documented exit code, got {number}") from error


class NoReplicas:
    """The method Replicate of a server without replicas."""

    async def replicate(self, call: Call) -> None:
        """Refuse the call."""
        data = await call.receive()
        if data is not None:
            bounded(parsed(shard_pb2.ReplicateRequest, data))
        raise precondition(
            "this server was started without --replicas: expected all servers of a job with the same options"
        )
