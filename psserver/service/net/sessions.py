"""The method Session: a worker's messages to the job, and the job's notices to the worker."""

import asyncio
import logging

import grpc

from psserver.coordinator.terms import Extent
from psserver.service.errors import RequestRefused, invalid, precondition
from psserver.service.guard.limits import JOIN
from psserver.service.guard.pace import KeyedPace
from psserver.service.job.job import ServedJob
from psserver.service.job.outbox import Outbox
from psserver.service.net.registration import Call, bounded, parsed
from pswire import protocol
from pswire.bounds import BoundError, check
from pswire.logs.events import event
from pswire.messages import EVENTS, REQUESTS
from pswire.v1 import coordinator_pb2 as pb

log = logging.getLogger("ps-server")


class FreeMessages:
    """The messages of a session that spend nothing of its member's pace: one `ready` for each of its tickets."""

    def __init__(self) -> None:
        # The first `ready` comes before any grant.
        self._newest, self._free = 0, 1

    def granted(self, ticket: int) -> None:
        """Make a `ready` free, once however often this ticket is granted again."""
        if ticket > self._newest:
            self._newest, self._free = ticket, self._free + 1

    def take(self, kind: str | None) -> bool:
        """Count a message; return whether it is free."""
        free = kind == "ready" and self._free > 0
        self._free -= free
        return free


class SessionRpc:
    """The method Session. `pace`: of members."""

    def __init__(self, job: ServedJob, pace: KeyedPace) -> None:
        self._job, self._pace = job, pace

    async def serve(self, call: Call) -> None:
        """Send notices in this task, and read the worker's messages in a second one."""
        data = await call.receive()
        first = None if data is None else parsed(pb.SessionRequest, data)
        if first is None or first.WhichOneof("message") != "hello":
            raise invalid("expected a SessionRequest with hello first")
        hello = bounded(first).hello
        if hello.job != self._job.terms.job:
            raise precondition(f"expected job {self._job.terms.job!r}, got {hello.job!r}; join again")

        # It waits here, unlike a Join: a refused stream would join again, and so never be within its pace.
        while (pause := self._pace.wait(hello.worker)) > 0:
            self._job.require_member(hello.worker, hello.incarnation, hello.session)
            await asyncio.sleep(pause)

        def cut() -> None:
            fields = event("session_cut", worker=hello.worker)
            log.warning("worker %s does not read its session: closing it", hello.worker, extra=fields)
            call.caller.cancel()

        outbox = self._job.attach(hello.worker, hello.incarnation, hello.session, cut)
        self._pace.spend(hello.worker, JOIN)
        free = FreeMessages()
        reader = asyncio.create_task(self._listen(call, hello, outbox, free))
        try:
            await call.reply(pb.SessionReply(events=[pb.SessionEvent(welcome=pb.Welcome())]))
            await self._reply(call, outbox, free)
        finally:
            reader.cancel()
            self._job.detach(hello.worker, hello.incarnation, outbox)

    async def _reply(self, call: Call, outbox: Outbox, free: FreeMessages) -> None:
        """Send notices, all that are ready in one message, until a fatal refusal or the end of the stream."""
        while notices := await outbox.take():
            if not await self._job.flushing.written():
                # Nobody hears of decisions that the log does not have; the end of the job is sent all the same.
                notices = [notice for notice in notices if isinstance(notice, protocol.Stop)]
            if notices:
                reply = pb.SessionReply()
                for notice in notices:
                    if isinstance(notice, protocol.Grant):
                        free.granted(notice.ticket)
                    EVENTS.fill(reply.events.add(), notice)
                await call.reply(reply)
            if any(isinstance(n, protocol.Refusal) and n.fatal for n in notices):
                return

    async def _listen(self, call: Call, hello: pb.Hello, outbox: Outbox, free: FreeMessages) -> None:
        try:
            while (data := await call.receive()) is not None:
                # A field beyond its bound costs a worker that message, but not its session.
                request = parsed(pb.SessionRequest, data)
                self._take(request, hello, outbox)
                if not free.take(request.WhichOneof("message")):
                    self._pace.spend(hello.worker)
                    # Further messages wait at their sender.
                    await outbox.ended(self._pace.wait(hello.worker))
        except RequestRefused as refused:
            outbox.put(protocol.Refusal(refused.message, fatal=True))
        except (grpc.aio.BaseError, grpc.RpcError) as error:
            # gRPC reports a broken stream this way.
            log.debug("session of %s ended: %r", hello.worker, error)
        except Exception as error:
            fields = event("session_failed", worker=hello.worker)
            log.exception("a session of %s failed", hello.worker, extra=fields)
            reason = f"the server failed on a message of this session ({type(error).__name__}: {error})"
            outbox.put(protocol.Refusal(reason, fatal=True))
        finally:
            self._job.detach(hello.worker, hello.incarnation, outbox)

    def _take(self, request: pb.SessionRequest, hello: pb.Hello, outbox: Outbox) -> None:
        worker, incarnation, job = hello.worker, hello.incarnation, self._job
        try:
            check(request)
        except BoundError as error:
            outbox.put(protocol.Refusal(str(error)))
            return
        match taken := REQUESTS.from_wire(request):
            case protocol.Report():
                refusal = job.evaluations.report(worker, taken.version, dict(taken.metrics))
                if refusal is not None:
                    outbox.put(protocol.Refusal(refusal))
            case None:
                self._tell(request, hello, outbox)
            case _:
                job.decider.handle(worker, incarnation, taken)

    def _tell(self, request: pb.SessionRequest, hello: pb.Hello, outbox: Outbox) -> None:
        """Take what is not for the coordinator: what a worker reports for people's status."""
        match request.WhichOneof("message"):
            case "extent":
                extent = Extent(request.extent.epochs, request.extent.batches)
                self._job.tell_extent(hello.worker, hello.incarnation, extent)
            case "carriers":
                carriers = [pb.Carrier.Name(each) for each in request.carriers.carriers]
                self._job.tell_carriers(hello.worker, hello.incarnation, carriers)
            case other:
                kinds = "ready, abandon, done, leave, report, extent or carriers"
                outbox.put(protocol.Refusal(f"expected {kinds}, got {other or 'nothing'}"))
