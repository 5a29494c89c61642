"""Between our own types and the wire's. Coordinator, policies and shards never see a message; the service does."""

from collections.abc import Iterable

from psserver.coordinator.status import JobReport
from psserver.coordinator.work.units import MOST_DESCRIPTION, WorkTerms
from psserver.service.guard.ledger import MemoryUse
from psserver.service.job.progress import HowFar
from pswire import protocol
from pswire.message_codec import MessageCodec
from pswire.messages import EVENTS, REASON
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2, shard_pb2

_WORK = MessageCodec(WorkTerms, pb.WorkUnits, taken=MOST_DESCRIPTION)
_REPORT = MessageCodec(JobReport, pb.StatusReply, sent=REASON, part=True)
progress_to_wire = MessageCodec(HowFar, pb.Progress).to_wire


def add_events(notices: Iterable[protocol.Event], reply: pb.SessionReply | shard_pb2.ExchangeReply) -> None:
    """`notices` as the events of `reply`, written where they stay: to make each for itself takes longer."""
    for notice in notices:
        EVENTS.fill(reply.events.add(), notice)


def work_from_wire(request: pb.JoinRequest) -> WorkTerms | None:
    """What the worker says of how its data is dealt. Raises WorkError for numbers that make no sense."""
    if not request.HasField("work"):
        return None
    terms = _WORK.from_wire(request.work)
    terms.check()
    return terms


def report_to_wire(report: JobReport) -> pb.StatusReply:
    """All of it but what the job's other parts know."""
    reply = _REPORT.to_wire(report)
    reply.pending = report.pending
    if report.loss is None:
        reply.loss = float("nan")
    return reply


def memory_to_wire(use: MemoryUse) -> memory_pb2.Memory:
    parts = [memory_pb2.MemoryPart(member=p.member, kind=p.kind, bytes=p.nbytes) for p in use.parts]
    return memory_pb2.Memory(limit=use.limit, total=use.total, parts=parts, rest=use.rest)
