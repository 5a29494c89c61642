"""The coordinator's methods: Join, Session, Commit, GatherEpoch, Note, ChangePolicy, Promote, Status."""

import asyncio
import json
import logging
import math
from typing import TYPE_CHECKING, Final, cast

from psserver import receipts
from psserver.coordinator import inputs
from psserver.coordinator.epochs import EpochError, EpochReport
from psserver.coordinator.units import MAX_DESCRIPTION, WorkError, WorkTerms
from psserver.policies import LocalRule, PolicyError
from psserver.records import to_plain
from psserver.service.errors import denied, invalid, precondition, unavailable
from psserver.service.guard.authorization import Names, Peer
from psserver.service.guard.limits import BURST, JOIN, PER_SECOND
from psserver.service.guard.pace import KeyedPace
from psserver.service.job.agreement import FROM_JOB, AgreedModel
from psserver.service.job.job import ServedJob
from psserver.service.job.next_job import begin_next, join_the_next
from psserver.service.job.routes import lines
from psserver.service.net.commits import Commits
from psserver.service.net.loop import loop_time
from psserver.service.net.registration import Call, parsed
from psserver.service.net.sessions import SessionRpc
from psserver.service.net.status import memory_to_wire, progress_to_wire, report_to_wire
from pswire.addresses import Address
from pswire.bounds import BOUNDS, Many
from pswire.generations import follows, same_job
from pswire.logs.events import event
from pswire.messages import MessageCodec, specs_from_wire, specs_to_wire
from pswire.model.plan import PlanError
from pswire.model.tables import tables_from_text
from pswire.model.variables import check_dimensions
from pswire.transport.codecs import WireDtypeError
from pswire.transport.leader import NOT_LEADING
from pswire.transport.wire import codec_numbered, deltas_numbered
from pswire.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from psserver.service.replicas.overview import Overview

log = logging.getLogger("ps-server")


_WORK = MessageCodec(WorkTerms, pb.WorkUnits, taken=MAX_DESCRIPTION)


def work_from_wire(request: pb.JoinRequest) -> WorkTerms | None:
    """Read how the worker's data is dealt. Raises WorkError for numbers that make no sense."""
    if not request.HasField("work"):
        return None
    terms = _WORK.from_wire(request.work)
    terms.check()
    return terms


MOST_VARIABLES: Final = cast(Many, BOUNDS["JoinRequest", "variables"].bound).most
# Bytes of a Join beside its variables, at most: three texts of 65,536 characters, and short fields.
BESIDE_VARIABLES: Final = 2**20
# Names appear in logs, paths and sentences.
NAME_LIMIT, NAME_EXTRA = 64, "-_.:/@"
# A client that asked for log entries in the last FOLLOWED seconds follows the log. At its end, the server waits
# SEEN_OFF seconds for such clients: a page asks twice a second.
FOLLOWED, SEEN_OFF = 2.0, 1.0
# Seconds of a step after which a status tells a transfer from a computation.
SEEN = 1.0


class CoordinatorRpc:
    """The coordinator's methods, which are refused where this server does not lead the job (`lead`)."""

    def __init__(
        self, address: Address, security: str = "", folder: str = "", overview: "Overview | None" = None
    ) -> None:
        """`address`: of this server. `security`, `folder`: shown by Status. `overview`: of the servers of a job with
        replicas."""
        self._led: ServedJob | None = None
        self._folder = folder
        # When a client last asked for log entries.
        self._followed = -math.inf
        # Owners of worker names.
        self._names = Names()
        self._security, self._overview = security, overview
        self._address = address
        self._pace = KeyedPace(PER_SECOND, BURST)
        self._known: pb.JoinRequest | None = None

    def lead(self, job: ServedJob | None) -> None:
        """Serve `job` from now on; None: another server leads, or none does."""
        self._led, self._names, self._known = job, Names(), None

    @property
    def _job(self) -> ServedJob:
        if self._led is None:
            raise unavailable(NOT_LEADING)
        return self._led

    async def session(self, call: Call) -> None:
        if self._overview is not None:
            self._overview.reached()
        await SessionRpc(self._job, self._pace).serve(call)

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitReply:
        return await Commits(self._job.decider, self._job.host).commit(request, call)

    # Join

    def parse_join(self, data: bytes, call: Call) -> pb.JoinRequest:
        """Parse a Join. Refuse a costly one before it costs: one of more bytes, fields or dimensions than it can need.

        The job's own model is only compared with what its worker must have sent. Raises Refused.
        """
        known = self._known_variables()
        if known is not None and len(data) > (most := BESIDE_VARIABLES + known.ByteSize()):
            raise invalid(
                f"expected a Join with this job's model, of at most {most} bytes, got {len(data)} bytes: "
                "the worker's model is another one"
            )
        request: pb.JoinRequest = parsed(pb.JoinRequest, data)
        # Before anything looks at them one by one: millions would take minutes.
        count = len(request.variables)
        if count > MOST_VARIABLES:
            raise invalid(f"JoinRequest.variables: expected at most {MOST_VARIABLES} elements, got {count}")
        if not count:
            raise invalid("expected at least one variable, got none")
        if known is not None and request.plan == known.plan and request.variables == known.variables:
            request.ClearField("variables")
        else:
            try:
                check_dimensions(sum(len(variable.shape) for variable in request.variables))
            except PlanError as error:
                raise invalid(str(error)) from error
        return request

    def _known_variables(self) -> pb.JoinRequest | None:
        """Return the job's variables and plan, as its workers send them; None: it has no model yet."""
        plan = self._job.agreement.plan
        if plan is None:
            return None
        if self._known is None or self._known.plan != plan.fingerprint:
            self._known = pb.JoinRequest(plan=plan.fingerprint, variables=specs_to_wire(plan.variables))
        return self._known

    async def join(self, request: pb.JoinRequest, call: Call) -> pb.JoinReply:
        if self._overview is not None:
            self._overview.reached()
        terms = self._job.terms
        self._check_job(request)
        _check_name(request.worker)
        request.worker = self._name_of(request, call.caller.peer)
        if self._pace.wait(request.worker):
            # A worker tries again later, as it does for its stream.
            raise unavailable(f"{request.worker!r} joins too often: wait")
        if not 1 <= len(request.session) <= NAME_LIMIT:
            raise invalid(f"session: expected 1 to {NAME_LIMIT} characters, got {len(request.session)}")
        if request.begins_next and not request.job:
            raise invalid("JoinRequest.begins_next: expected `job`, the one that the process has ended")
        if request.begins_next and same_job(request.job, terms.job):
            begin_next(self._job.decider, request.worker, request.optimizer)
        if self._job.agreement.following is not None and not same_job(request.job, terms.job):
            raise join_the_next()
        rank = request.task_index if request.HasField("task_index") else None
        try:
            codec, deltas = codec_numbered(request.wire_dtype), deltas_numbered(request.deltas)
            for used in (codec, deltas):
                if used is not None and used.scaled:
                    await self._job.host.runtime.passes.on_pool(used.prepare)

            def model() -> AgreedModel:
                return AgreedModel(specs_from_wire(request.variables), tables_from_text(request.tables))

            member = self._job.joining.join(
                model,
                request.plan,
                request.worker,
                request.session,
                rank,
                request.optimizer,
                work_from_wire(request),
                codec,
                deltas,
                stays=request.stays,
                used=request.used,
                computes=request.computes,
                function=request.function,
                process=request.process,
                place=request.place,
            )
        except (PlanError, WireDtypeError, WorkError) as error:
            raise invalid(str(error)) from error
        self._pace.spend(member.worker, JOIN)
        await self._settled()
        self._names.claim(call.caller.peer, member.worker)
        log.info(
            "%s joins (incarnation %d, task index %d%s)",
            *(member.worker, member.incarnation, member.rank),
            f", {request.computes}" if request.computes else "",
            extra=event(
                "worker_joined",
                worker=member.worker,
                incarnation=member.incarnation,
                task_index=member.rank,
                computes=request.computes,
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
            next_batch=self._job.coordinator.state.roster.tally(member.worker).next_batch,
            worker_timeout=terms.worker_timeout,
            local_rule=_local_rule_to_wire(self._job.agreement.policy.local_rule),
            membership_token=receipts.membership_token(
                self._job.host.secret, terms.job, member.worker, member.incarnation
            ),
            learning_rate=self._job.coordinator.settable_rate,
            chief=self._job.epochs.chief,
            phase=self._job.coordinator.state.phase,
            phase_batch=self._job.coordinator.state.roster.tally(member.worker).phase_batch,
        )

    def _check_job(self, request: pb.JoinRequest) -> None:
        """Raise Refused for a worker of another job, or of other servers."""
        terms = self._job.terms
        if follows(request.job, terms.job):
            raise unavailable(
                f"this server still serves {terms.job}, which {request.job} has followed: wait",
            )
        comes_next = request.begins_next and (
            not terms.predecessors or any(same_job(request.job, each) for each in terms.predecessors)
        )
        if not request.job and terms.predecessors:
            raise precondition(
                f"job {terms.job} is not the first one of its workers' scripts: expected a worker that comes from job "
                f"{terms.predecessors[0]}; a script that is started again would begin with its first fit, on other "
                "data, so the others go on without it"
            )
        if request.job and not same_job(request.job, terms.job) and not comes_next:
            raise precondition(
                f"these servers run job {terms.job}, and this worker belongs to job {request.job}, which is over or "
                "was killed: start the worker anew to take part"
            )
        if request.servers != terms.servers and self._overview is not None:
            parts = "one part" if terms.servers == 1 else f"{terms.servers} parts"
            raise precondition(
                f"these servers have replicas of a model in {parts}, and this worker takes it to be in "
                f"{request.servers}: give every worker PS_REPLICAS=2, and the same servers (--ps-hosts, PS_HOSTS, "
                "hosts=)"
            )
        if request.servers != terms.servers:
            raise precondition(
                f"expected a worker of {terms.servers} servers, got one of {request.servers}: "
                "give every process the same servers (--ps-hosts, PS_HOSTS, hosts=)"
            )

    def _name_of(self, request: pb.JoinRequest, peer: Peer) -> str:
        """Return the worker's name. Raises Refused if it belongs to another credential."""
        asked = str(request.worker)
        if peer.role is not None and not (asked or peer.name):
            # Check the name that the worker would be given before it has it.
            free = self._job.coordinator.state.roster.free_rank()
            asked = f"w{request.task_index if request.HasField('task_index') else free}"
        return self._names.name_for(peer, asked)

    # Epochs

    async def gather_epoch(self, request: pb.GatherEpochRequest, call: Call) -> pb.GatherEpochReply:
        claim = receipts.Claim(request.job, request.worker, request.incarnation, request.membership_token)
        job = self._job.terms.job
        if follows(job, request.job) or follows(request.job, job):
            # The worker's session joins the later generation meanwhile; then it asks again as a member of that.
            raise unavailable(f"{job} is another generation of {request.job}: wait")
        if request.job != job or not claim.proven(self._job.host.secret):
            raise denied(
                "expected a member of this job with its membership token: join",
            )
        report = EpochReport(
            request.number, request.layout, list(request.sums), dict(request.values), request.yields
        )
        try:
            totals = self._job.epochs.gather(request.worker, request.incarnation, report)
        except EpochError as error:
            raise precondition(str(error)) from error
        return pb.GatherEpochReply(
            complete=totals.complete,
            workers=len(totals.workers),
            sums=totals.sums,
            values=totals.values,
            chief=self._job.epochs.chief if totals.complete else "",
            held_up=totals.held_up,
        )

    # Servers

    async def find_coordinator(
        self, request: pb.FindCoordinatorRequest, call: Call
    ) -> pb.FindCoordinatorReply:
        if self._overview is not None:
            return self._overview.found(request.unreached if request.HasField("unreached") else None)
        return pb.FindCoordinatorReply(address=str(self._address))

    # Operators

    async def promote(self, request: pb.PromoteRequest, call: Call) -> pb.PromoteReply:
        if self._overview is None:
            raise precondition(
                "expected one of two servers of a job with replicas, got one without --replicas"
            )
        return pb.PromoteReply(epoch=self._overview.promote(request.job))

    async def note(self, request: pb.NoteRequest, call: Call) -> pb.NoteReply:
        job = self._job
        if not request.text.strip():
            raise invalid("expected a text, got an empty one")
        if job.stopped() is not None:
            raise precondition("expected a job that goes on: it has stopped")
        job.decider.input(inputs.NoteAdded(request.text))
        await self._settled()
        return pb.NoteReply()

    async def change_policy(self, request: pb.ChangePolicyRequest, call: Call) -> pb.ChangePolicyReply:
        job, caller = self._job, call.caller
        if not request.name:
            raise invalid("expected the name of a policy, got none")
        by = caller.peer.credential or caller.address or "an operator on this machine"
        try:
            effect = job.change_policy(request.name, request.knobs, by, request.why, request.rate or None)
        except PolicyError as error:
            raise precondition(str(error)) from error
        await self._settled()
        return pb.ChangePolicyReply(effect=effect)

    async def _settled(self) -> None:
        """Wait until the log has what was decided. Raises Refused if it cannot be written."""
        if not await self._job.decider.settled():
            raise unavailable("the decision log cannot be written: the job is over")

    # Status

    async def status(self, request: pb.StatusRequest, call: Call) -> pb.StatusReply:
        job = self._job
        reply = report_to_wire(job.report())
        transferring = job.host.watch.transferring()
        for worker in reply.workers:
            if worker.state == "computing" and worker.seconds >= SEEN and worker.name in transferring:
                worker.state = "transferring"
            worker.carriers.extend(map(pb.Carrier.Value, job.carriers.get(worker.name, ())))
            member = job.coordinator.state.roster.present.get(worker.name)
            worker.computes = "" if member is None else member.computes
        progress = job.progress.measure(job.coordinator, job.decider.now())
        if progress is not None:
            reply.progress.CopyFrom(progress_to_wire(progress))
        reply.job = job.terms.job
        reply.security = self._security
        reply.folder = self._folder
        reply.seconds = job.decider.now()
        optimizer = job.agreement.optimizer
        reply.policy = job.coordinator.policy.name
        reply.policy_knobs = json.dumps(to_plain(job.coordinator.policy.knobs))
        reply.change = job.coordinator.change
        reply.optimizer = FROM_JOB if optimizer is None else optimizer.name
        own = pb.ServerStatus(
            task_index=0,
            address=str(self._address),
            state="ready",
            bytes=job.host.nbytes,
            executed=job.host.state.executed,
            memory=memory_to_wire(job.host.memory, job.host.table_figures()),
        )
        for follower in job.routes.followers:
            follower.ask()
        others = [
            pb.ServerStatus(
                task_index=follower.server,
                address=str(follower.address),
                state="reading" if follower.state == "ready" and follower.reading else follower.state,
                bytes=follower.nbytes,
                executed=follower.executed,
                memory=follower.memory,
            )
            for follower in job.routes.followers
        ]
        if self._overview is None:
            reply.servers.extend([own, *others])
        else:
            servers, reply.replicas = self._overview.copies()
            reply.servers.extend(servers)
            reply.note = "; ".join(filter(None, (reply.note, reply.replicas)))
        if request.HasField("entries_from"):
            records = job.routes.tail.since(request.entries_from)
            reply.entries.extend(lines(records))
            reply.entries_from = records[0].index if records else request.entries_from
            self._followed = loop_time()
            reply.evaluations.extend(
                pb.Evaluation(number=n, seconds=line["t"], version=line["version"], metrics=line["metrics"])
                for n, line in job.evaluations.since(request.evaluations_from)
            )
        return reply

    async def wait_for_log_readers(self) -> None:
        """Give clients that follow the log a moment to read how the job ended."""
        if loop_time() - self._followed < FOLLOWED:
            await asyncio.sleep(SEEN_OFF)


def _local_rule_to_wire(rule: LocalRule) -> pb.LocalRule:
    return pb.LocalRule(name=rule.name, knobs=rule.knobs)


def _check_name(name: str) -> None:
    if len(name) > NAME_LIMIT or not all(c.isalnum() or c in NAME_EXTRA for c in name):
        raise invalid(
            f"worker name: expected at most {NAME_LIMIT} letters, digits or {' '.join(NAME_EXTRA)}, got {name[:80]!r}"
        )
