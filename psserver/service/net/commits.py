"""Commits at server 0: one handler for those behind a payload, behind receipts, and of gRPC's method Commit."""

from collections.abc import Awaitable, Callable

from psserver.coordinator.tickets import Ticket
from psserver.receipts import examine, missing_receipts
from psserver.service.errors import invalid, precondition, unavailable
from psserver.service.guard.calls import CallPeer
from psserver.service.job.decider import Decider
from psserver.service.net.registration import Call
from psserver.service.store.host import ShardHost
from pswire import protocol
from pswire.generations import follows
from pswire.messages import COMMITS, EVENTS
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2

Answer = Callable[[list[protocol.Event]], Awaitable[None]]
"""Sends the events that follow from a commit."""


class Commits:
    """Takes the commits of workers. The loop's thread owns it."""

    def __init__(self, decider: Decider, host: ShardHost) -> None:
        self._decider, self._host = decider, host

    @property
    def sole(self) -> bool:
        """Whether the job has one server, so that a payload needs no receipt."""
        return self._decider.agreement.terms.servers == 1

    def settled(self, request: pb.CommitRequest) -> bool:
        """Whether the ticket has been committed, cancelled or given back: it needs no payload, and the answer to its
        commit is its fate."""
        ticket = self._ticket(request)
        return ticket is not None and ticket.state != "open"

    def counted(self, request: pb.CommitRequest) -> bool:
        """Whether an earlier try may have counted: the ticket is settled, and was not cancelled."""
        ticket = self._ticket(request)
        return ticket is not None and ticket.state != "open" and not (ticket.fate and ticket.fate.cancelled)

    def _ticket(self, request: pb.CommitRequest) -> Ticket | None:
        return self._decider.coordinator.state.tickets.find(request.commit.ticket, request.hello.worker)

    def check(self, request: pb.CommitRequest, push: shard_pb2.PushHeader) -> None:
        """Raise Refused unless the commit is of what the push names, by the same worker."""
        if not self.sole:
            raise precondition(
                "expected no commit with a push: the job has several servers; commit with their receipts"
            )
        hello = request.hello
        if hello.job != push.job or request.commit.ticket != push.ticket:
            raise invalid("expected a commit of the ticket that was pushed, and a hello of this job")
        if (hello.worker, hello.incarnation) != (push.worker, push.incarnation):
            raise invalid("expected a hello of the worker that pushed")

    async def take(
        self, request: pb.CommitRequest, caller: CallPeer, answer: Answer, norm: float | None = None
    ) -> None:
        """Have a commit decided, and `answer` with its fate, and with the next grant if it asks for that and that comes
        soon; else the session brings it.

        `norm`: of the payload that this server holds; None: receipts prove that all servers hold it. Raises Refused,
        and then only UNAVAILABLE leaves open whether the commit counts: the worker sends it again.
        """
        decider, hello = self._decider, request.hello
        job = decider.agreement.terms.job
        if hello.job != job:
            if follows(job, hello.job) or follows(hello.job, job):
                raise unavailable(f"{job} is another generation of {hello.job}: wait")
            raise precondition(f"expected job {job!r}, got {hello.job!r}; join again")
        outboxes = decider.routes.outboxes
        outbox, inline = outboxes.begin_inline(hello.worker, hello.incarnation, hello.session)
        try:
            self._host.watch.claim(hello.worker, caller)
            if norm is None:
                norm = self._norm(request)
            await decider.take(hello.worker, hello.incarnation, COMMITS.from_wire(request.commit), norm)
            notices = await inline.take(self._host.options.patience if request.commit.ready else 0.0)
            if not any(_settles(notice, request.commit.ticket) for notice in notices):
                raise unavailable("the worker's session broke, and has the answer: wait")
            if not await decider.flushing.written():
                inline.forget()
                raise unavailable("the decision log cannot be written: the job is over")
            await answer(notices)
            inline.delivered()
        finally:
            outboxes.end_inline(outbox, inline)

    def _norm(self, request: pb.CommitRequest) -> float:
        """Return the norm that the receipts say. Raises Refused if one is missing; a settled ticket needs none."""
        commit, terms = request.commit, self._decider.agreement.terms
        found = examine(self._host.secret, terms.job, commit.ticket, terms.servers, list(commit.receipts))
        if found.missing and not self.settled(request):
            raise precondition(missing_receipts(commit.ticket, found.missing))
        return found.norm

    async def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitReply:
        """Serve the method Commit of the coordinator. Raises as `take`."""
        reply = pb.CommitReply()

        async def answer(notices: list[protocol.Event]) -> None:
            for notice in notices:
                EVENTS.fill(reply.events.add(), notice)

        await self.take(request, call.caller, answer)
        return reply


def _settles(notice: protocol.Event, ticket: int) -> bool:
    """Whether a notice says what became of the ticket, or that nothing more will be said."""
    match notice:
        case protocol.Disposition(number) | protocol.Refusal(ticket=number):
            return number == ticket
        case _:
            return isinstance(notice, protocol.Stop)
