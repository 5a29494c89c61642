"""Join, Session and Status: workers' messages to the job, the job's notices to workers."""

import asyncio
import logging
import time

import grpc

from psserver import receipts
from psserver.coordinator.epochs import EpochError, Report
from psserver.coordinator.outputs import RefusalNotice, StopNotice
from psserver.coordinator.work.units import WorkError
from psserver.policies import LocalRule
from psserver.service.access.peers import Names, Peer
from psserver.service.errors import Refused, invalid, precondition
from psserver.service.job.agreement import FROM_JOB
from psserver.service.job.job import Job
from psserver.service.job.progress import Extent
from psserver.service.log.tail import lines
from psserver.service.outbox import Outbox
from psserver.service.pace import Arrivals, Pace
from psserver.service.rpc.adapters import (
    add_events,
    facts_from_wire,
    memory_to_wire,
    progress_to_wire,
    report_to_wire,
    work_from_wire,
)
from psserver.service.rpc.registration import Call, bounded, parsed
from psserver.service.succession.moves import Located, Moves
from psserver.service.succession.successor import Succession
from pswire.addresses import Address
from pswire.bounds import BoundError, check
from pswire.generations import follows
from pswire.logs.events import event
from pswire.logs.texts import escaped
from pswire.model.plan import PlanError
from pswire.model.specs import specs_from_wire
from pswire.transport.codecs import WireDtypeError, codec_numbered
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-server")

# Names appear in logs, paths and sentences.
NAME_LIMIT, NAME_EXTRA = 64, "-_.:/@"
REASON_LIMIT = 200
# What a worker says as often as it works.
WORK = ("ready", "commit")


# Words of one session that bring no work: each leaves entries in the decision log.
IDLE_WORDS_PER_SECOND, IDLE_WORDS = 100.0, 1000


class CoordinatorRpc:
    """Called by the task of each call; it keeps nothing of its own but who came how often."""

    def __init__(
        self,
        job: Job,
        addresses: tuple[Address, ...],
        moves: Moves,
        moved: frozenset[int] = frozenset(),
        succession: Succession | None = None,
        names: Names | None = None,
        security: str = "",
    ) -> None:
        """`moved`: the servers that are not where workers were told. `succession`: where the servers stay, what is to
        come behind this job. `names`: whose they are. `security`: what the status says of it."""
        self._job = job
        self._names = names or Names()
        self._security = security
        self._addresses = addresses
        self._moves = moves
        self._moved = [str(each) if n in moved else "" for n, each in enumerate(addresses)] if moved else []
        self._succession = succession
        # A name that never committed has no pace of its own, also of a worker that was lost before its first commit.
        workers, proven = job.terms.workers, job.has_committed
        self._joins, self._streams = Arrivals(workers, proven), Arrivals(workers, proven)

    # Join

    async def join(self, request: pb.JoinRequest, call: Call) -> pb.JoinReply:
        terms = self._job.terms
        if follows(request.job, terms.job):
            raise Refused(
                grpc.StatusCode.UNAVAILABLE,
                f"this server is of {terms.job}, which {request.job} has followed: expected a later one here",
            )
        if request.job and request.job != terms.job and not follows(terms.job, request.job):
            raise precondition(
                f"these servers run job {terms.job}, and this worker belongs to job {request.job}, which is over or "
                "was killed: start the worker anew to take part"
            )
        if request.servers != terms.servers:
            raise precondition(
                f"expected a worker of {terms.servers} servers, got one of {request.servers}: "
                "give every process the same --ps-hosts"
            )
        _check_name(request.worker)
        request.worker = self._name_of(request, call.caller.peer)
        if not self._joins.may(request.worker):
            # A worker tries again in a while, as it does for the next stream.
            raise Refused(grpc.StatusCode.UNAVAILABLE, "too many workers join at once: wait")
        if not 1 <= len(request.session) <= NAME_LIMIT:
            raise invalid(f"session: expected 1 to {NAME_LIMIT} characters, got {len(request.session)}")
        rank = request.task_index if request.HasField("task_index") else None
        try:
            codec = codec_numbered(request.wire_dtype)
            variables = specs_from_wire(request.variables)
            work = work_from_wire(request)
            if self._succession is not None and not request.job and self._succession.open:
                self._succession.ask(variables, request.plan, request.optimizer, work)
            member = self._job.joining.join(
                variables,
                request.plan,
                request.worker,
                request.session,
                rank,
                request.optimizer,
                work,
                codec.remembers,
            )
        except (PlanError, WireDtypeError, WorkError) as error:
            raise invalid(str(error)) from error
        if not await self._job.flushing.written():
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the decision log cannot be written: the job is over")
        self._joins.came(member.worker)
        self._names.came(call.caller.peer, member.worker)
        log.info(
            "%s joins (incarnation %d, task index %d)",
            *(member.worker, member.incarnation, member.rank),
            extra=event(
                "worker_joined", worker=member.worker, incarnation=member.incarnation, task_index=member.rank
            ),
        )
        return pb.JoinReply(
            job=terms.job,
            worker=member.worker,
            incarnation=member.incarnation,
            worker_index=member.rank,
            # A worker beyond the number that the job was started for has a part of the data too.
            worker_count=max(terms.workers, member.rank + 1),
            seed=terms.seed,
            next_batch=self._job.next_batch(member.worker),
            worker_timeout=terms.worker_timeout,
            local_rule=_local_rule_to_wire(self._job.agreement.policy.local_rule),
            membership_token=receipts.membership_token(
                self._job.host.secret, terms.job, member.worker, member.incarnation
            ),
            moved=self._moved,
        )

    def _name_of(self, request: pb.JoinRequest, peer: Peer) -> str:
        """Raises Refused for a name that belongs to another credential."""
        asked = str(request.worker)
        if peer.role is not None and not (asked or peer.name):
            # The name that it would be given is looked at before it has it.
            free = self._job.coordinator.roster.free_rank()
            asked = f"w{request.task_index if request.HasField('task_index') else free}"
        return self._names.of(peer, asked)

    # Session

    async def session(self, call: Call) -> None:
        """Notices go out in this task; a second one reads the worker's messages."""
        data = await call.receive()
        first = None if data is None else parsed(pb.SessionRequest, data)
        if first is None or first.WhichOneof("message") != "hello":
            raise invalid("expected a SessionRequest with hello first")
        hello = bounded(first).hello
        if hello.job != self._job.terms.job:
            raise precondition(f"expected job {self._job.terms.job!r}, got {hello.job!r}; join again")

        if not self._streams.may(hello.worker):
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"too many streams of {hello.worker!r}: wait")

        def cut() -> None:
            told = event("session_cut", worker=hello.worker)
            log.warning("worker %s does not read its session: closing it", hello.worker, extra=told)
            call.caller.cancel()

        outbox = self._job.attach(hello.worker, hello.incarnation, hello.session, cut)
        self._streams.came(hello.worker)
        reader = asyncio.create_task(self._listen(call, hello, outbox))
        try:
            await call.reply(pb.SessionReply(events=[pb.SessionEvent(welcome=pb.Welcome())]))
            await self._reply(call, outbox)
        finally:
            reader.cancel()
            self._job.detach(hello.worker, hello.incarnation, outbox)

    async def _reply(self, call: Call, outbox: Outbox) -> None:
        """What is there at once goes out as one message. Until a fatal refusal, or the end of the stream."""
        while notices := await outbox.take():
            if not await self._job.flushing.written():
                # What the log does not have nobody hears of; the end of the job is among what comes now.
                notices = [notice for notice in notices if isinstance(notice, StopNotice)]
            if notices:
                reply = pb.SessionReply()
                add_events(notices, reply)
                await call.reply(reply)
            if any(isinstance(n, RefusalNotice) and n.fatal for n in notices):
                return

    async def _listen(self, call: Call, hello: pb.Hello, outbox: Outbox) -> None:
        pace = Pace(IDLE_WORDS_PER_SECOND, IDLE_WORDS)
        try:
            while (data := await call.receive()) is not None:
                # A field beyond its bound costs a worker that message, not its session.
                request = parsed(pb.SessionRequest, data)
                self._take(request, hello, outbox)
                if request.WhichOneof("message") not in WORK:
                    pace.spend()
                    # What is unread meanwhile waits at its sender.
                    await outbox.ended(pace.wait())
        except Refused as refused:
            outbox.put(RefusalNotice(refused.message, fatal=True))
        except (grpc.aio.BaseError, grpc.RpcError) as error:
            # How gRPC reports a stream that broke.
            log.debug("session of %s ended: %r", hello.worker, error)
        except Exception as error:
            told = event("session_failed", worker=hello.worker)
            log.exception("a session of %s failed", hello.worker, extra=told)
            said = f"the server failed on a message of this session ({type(error).__name__}: {error})"
            outbox.put(RefusalNotice(said, fatal=True))
        finally:
            self._job.detach(hello.worker, hello.incarnation, outbox)

    def _take(self, request: pb.SessionRequest, hello: pb.Hello, outbox: Outbox) -> None:
        worker, incarnation, job = hello.worker, hello.incarnation, self._job
        try:
            check(request)
        except BoundError as error:
            outbox.put(RefusalNotice(str(error), ticket=request.commit.ticket))
            return
        match request.WhichOneof("message"):
            case "ready":
                job.ready(worker, incarnation, request.ready.holding)
            case "commit":
                self._commit(request.commit, hello, outbox)
            case "abandon":
                reason = escaped(request.abandon.reason, REASON_LIMIT)
                abandon = request.abandon
                job.abandon(worker, incarnation, abandon.ticket, reason, unit_ends=abandon.unit_ends)
            case "done":
                job.done(worker, incarnation, escaped(request.done.ends, REASON_LIMIT))
            case "leave":
                job.leave(worker, incarnation, escaped(request.leave.reason, REASON_LIMIT) or "left")
            case "extent":
                extent = Extent(request.extent.epochs, request.extent.batches)
                job.tell_extent(worker, incarnation, extent)
            case "report":
                self._report(request.report, hello, outbox)
            case other:
                message = f"expected ready, commit, abandon, done, leave, report or extent, got {other or 'nothing'}"
                outbox.put(RefusalNotice(message))

    def _commit(self, commit: pb.Commit, hello: pb.Hello, outbox: Outbox) -> None:
        terms, host = self._job.terms, self._job.host
        found = receipts.examine(host.secret, terms.job, commit.ticket, terms.servers, commit.receipts)
        if found.missing and not self._job.repeated(hello.worker, commit.ticket):
            servers = ", ".join(map(str, found.missing))
            message = (
                f"commit of ticket {commit.ticket}: expected a receipt from every server's Push, "
                f"got none that is valid from server {servers}"
            )
            outbox.put(RefusalNotice(message, ticket=commit.ticket))
            return
        facts = facts_from_wire(commit, ordinary=found.ordinary, norm=found.norm)
        self._job.commit(hello.worker, hello.incarnation, commit.ticket, facts, ready=commit.ready)

    def _report(self, message: pb.Report, hello: pb.Hello, outbox: Outbox) -> None:
        metrics = {str(name): float(value) for name, value in message.metrics.items()}
        refusal = self._job.evaluations.report(hello.worker, message.version, metrics)
        if refusal is not None:
            outbox.put(RefusalNotice(refusal))

    # Epochs

    async def gather_epoch(self, request: pb.GatherEpochRequest, call: Call) -> pb.GatherEpochReply:
        claim = receipts.Claim(request.job, request.worker, request.incarnation, request.membership_token)
        if request.job != self._job.terms.job or not claim.proven(self._job.host.secret):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                "expected a member of this job with its membership token: join",
            )
        report = Report(request.number, request.layout, list(request.sums), dict(request.values))
        try:
            totals = self._job.epochs.gather(request.worker, request.incarnation, report)
        except EpochError as error:
            raise precondition(str(error)) from error
        return pb.GatherEpochReply(
            complete=totals.complete, workers=len(totals.workers), sums=totals.sums, values=totals.values
        )

    # Servers on other addresses

    async def locate(self, request: pb.LocateRequest, call: Call) -> pb.LocateReply:
        said = Located(request.task_index, request.servers, request.address, request.job, request.proof)
        address = self._moves.locate(said, call.when_over)
        return pb.LocateReply(job=self._job.terms.job, address=str(address))

    # Status

    async def status(self, request: pb.StatusRequest, call: Call) -> pb.StatusReply:
        job = self._job
        reply = report_to_wire(job.report())
        progress = job.progress()
        if progress is not None:
            reply.progress.CopyFrom(progress_to_wire(progress))
        reply.job = job.terms.job
        reply.security = self._security
        reply.seconds = time.monotonic() - job.began
        optimizer = job.agreement.optimizer
        reply.policy = job.agreement.policy.name
        reply.optimizer = FROM_JOB if optimizer is None else optimizer.name
        own = pb.ServerStatus(
            task_index=0,
            address=str(self._addresses[0]),
            state="ready",
            bytes=job.host.nbytes,
            executed=job.host.state.executed,
            memory=memory_to_wire(job.host.memory_use()),
        )
        for follower in job.routes.followers:
            follower.ask()
        others = [
            pb.ServerStatus(
                task_index=follower.server,
                address=str(follower.address),
                state=follower.state,
                bytes=follower.nbytes,
                executed=follower.executed,
                memory=follower.memory,
            )
            for follower in job.routes.followers
        ]
        reply.servers.extend([own, *others])
        if request.HasField("entries_from"):
            records = job.entries(request.entries_from)
            reply.entries.extend(lines(records))
            reply.entries_from = records[0].index if records else request.entries_from
        return reply


def _local_rule_to_wire(rule: LocalRule) -> pb.LocalRule:
    return pb.LocalRule(name=rule.name, knobs=rule.knobs)


def _check_name(name: str) -> None:
    if len(name) > NAME_LIMIT or not all(c.isalnum() or c in NAME_EXTRA for c in name):
        raise invalid(
            f"worker name: expected at most {NAME_LIMIT} letters, digits or {' '.join(NAME_EXTRA)}, got {name[:80]!r}"
        )
