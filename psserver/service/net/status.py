"""Status: the state of a job and its servers as one message."""

from collections.abc import Iterable

from psserver.coordinator.progress import JobProgress
from psserver.coordinator.status import JobReport
from psserver.service.guard.memory import Memory
from psserver.table_figures import TableFigures
from psserver.table_messages import table_to_wire
from pswire.messages import REASON, MessageCodec
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2

_REPORT = MessageCodec(JobReport, pb.StatusReply, sent=REASON, part=True)
progress_to_wire = MessageCodec(JobProgress, pb.Progress).to_wire


def report_to_wire(report: JobReport) -> pb.StatusReply:
    """Convert the report, without what other parts of the job contribute."""
    reply = _REPORT.to_wire(report)
    reply.pending = report.pending
    if report.loss is None:
        reply.loss = float("nan")
    return reply


def memory_to_wire(memory: Memory, tables: Iterable[TableFigures]) -> memory_pb2.Memory:
    """Convert the memory of a server, and what its tables hold."""
    largest = sorted(memory.parts().items(), key=lambda part: -part[1])
    parts = [memory_pb2.MemoryPart(kind=kind, bytes=nbytes) for kind, nbytes in largest if nbytes]
    total = sum(part.bytes for part in parts)
    return memory_pb2.Memory(limit=memory.limit, total=total, parts=parts, tables=map(table_to_wire, tables))
