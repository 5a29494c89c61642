"""Between our own types and the wire's. Coordinator, policies and shards never see a message; the service does."""

from collections.abc import Iterable
from typing import Any, get_args

from google.protobuf import message_factory

from psserver.coordinator.status import JobReport, WorkerReport
from psserver.coordinator.work.units import MOST_DESCRIPTION, WorkTerms
from psserver.service.job.progress import HowFar as Progress
from psserver.service.limits.ledger import MemoryUse
from pswire import protocol
from pswire.decisions import orders
from pswire.logs.texts import escaped
from pswire.message_codec import MessageCodec
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2, shard_pb2

# Characters of a sentence to a worker: a policy of somebody's own may say anything.
SENTENCE = 2000

_FATES = {
    "applied": pb.Disposition.FATE_APPLIED,
    "dropped": pb.Disposition.FATE_DROPPED,
    "pending": pb.Disposition.FATE_PENDING,
}


def add_events(notices: Iterable[protocol.Event], reply: pb.SessionReply | shard_pb2.ExchangeReply) -> None:
    """`notices` as the events of `reply`. Those of every step are written where they stay: to make each for itself, and
    copy it, takes twice as long."""
    for notice in notices:
        event = reply.events.add()
        if isinstance(notice, protocol.Grant) and notice.part is None:
            grant = event.grant
            grant.ticket, grant.version, grant.index = notice.ticket, notice.version, notice.index
            grant.initialise = notice.initialise
        elif isinstance(notice, protocol.Disposition) and not notice.reason:
            told = event.disposition
            told.ticket, told.fate, told.version = notice.ticket, _FATES[notice.fate], notice.version
            told.staleness, told.weight = notice.staleness, notice.weight
        else:
            event.CopyFrom(event_to_wire(notice))


def event_to_wire(notice: protocol.Event) -> pb.SessionEvent:
    match notice:
        case protocol.Grant(ticket, version, index, initialise, part):
            grant = pb.Grant(ticket=ticket, version=version, index=index, initialise=initialise)
            if part is not None:
                grant.part.CopyFrom(pb.UnitPart(epoch=part.epoch, unit=part.unit, part=part.part))
            return pb.SessionEvent(grant=grant)
        case protocol.Cancel(ticket, reason):
            return pb.SessionEvent(cancel=pb.Cancel(ticket=ticket, reason=escaped(reason, SENTENCE)))
        case protocol.Disposition(ticket, fate, version, staleness, weight, reason):
            disposition = pb.Disposition(
                ticket=ticket,
                fate=_FATES[fate],
                version=version,
                staleness=staleness,
                weight=weight,
                reason=escaped(reason, SENTENCE),
            )
            return pb.SessionEvent(disposition=disposition)
        case protocol.Stop(reason, version, success, index, evaluate):
            said = escaped(reason, SENTENCE)
            stop = pb.Stop(reason=said, version=version, success=success, index=index, evaluate=evaluate)
            return pb.SessionEvent(stop=stop)
        case protocol.Refusal(message, fatal, ticket):
            return pb.SessionEvent(
                refusal=pb.Refusal(message=escaped(message, SENTENCE), fatal=fatal, ticket=ticket)
            )


def commit_from_wire(commit: pb.Commit) -> protocol.Commit:
    """All of it but the receipts, which are looked at before."""
    sent = commit.times
    times = protocol.Times(sent.pull, sent.compute, sent.before or None) if commit.HasField("times") else None
    rate = commit.learning_rate if commit.HasField("learning_rate") else None
    told = (commit.ticket, commit.batch, commit.samples, commit.loss, commit.ready)
    return protocol.Commit(*told, times, (), rate, commit.unit_ends)


def work_from_wire(request: pb.JoinRequest) -> WorkTerms | None:
    """What the worker says of how its data is dealt. Raises WorkError for numbers that make no sense."""
    if not request.HasField("work"):
        return None
    sent = request.work
    data = escaped(sent.data, MOST_DESCRIPTION)
    terms = WorkTerms(sent.units, sent.epochs, sent.batches, data, sent.apart)
    terms.check()
    return terms


_ORDERS: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(orders.Order)}
# One without fields is a bool that is true.
_CODECS: dict[type[Any], MessageCodec[Any, Any]] = {
    _ORDERS[name]: MessageCodec(_ORDERS[name], message_factory.GetMessageClass(field.message_type))
    for name, field in shard_pb2.Decision.DESCRIPTOR.fields_by_name.items()
    if field.message_type is not None
}
apply_to_wire = _CODECS[orders.Apply].to_wire
apply_from_wire = _CODECS[orders.Apply].from_wire


def order_to_wire(index: int, order: orders.Order) -> shard_pb2.Decision:
    codec = _CODECS.get(type(order))
    body: Any = {type(order).__name__.lower(): True if codec is None else codec.to_wire(order)}
    return shard_pb2.Decision(index=index, **body)


def order_from_wire(decision: shard_pb2.Decision) -> orders.Order:
    """Raises ValueError for a decision of a kind that this version does not know."""
    name = decision.WhichOneof("decision")
    if name is None:
        raise ValueError(f"decision {decision.index} is of kind {name!r}, which this server does not know")
    kind = _ORDERS[name]
    codec = _CODECS.get(kind)
    made: orders.Order = kind() if codec is None else codec.from_wire(getattr(decision, name))
    return made


def report_to_wire(report: JobReport) -> pb.StatusReply:
    return pb.StatusReply(
        phase=report.phase,
        version=report.version,
        committed=report.committed,
        applied=report.applied,
        dropped=report.dropped,
        pending=report.pending,
        samples=report.samples,
        loss=float("nan") if report.loss is None else report.loss,
        mean_staleness=report.mean_staleness,
        max_staleness=report.max_staleness,
        note=escaped(report.note, SENTENCE),
        unlisted=report.unlisted,
        workers=[_worker_to_wire(worker) for worker in report.workers],
    )


def _worker_to_wire(worker: WorkerReport) -> pb.WorkerStatus:
    return pb.WorkerStatus(
        name=worker.name,
        incarnation=worker.incarnation,
        state=worker.state,
        seconds=worker.seconds,
        waiting_for=worker.waiting_for,
        releasers=worker.releasers,
        ticket=worker.ticket,
        base_version=worker.base,
        committed=worker.committed,
        applied=worker.applied,
        dropped=worker.dropped,
        mean_staleness=worker.mean_staleness,
        max_staleness=worker.max_staleness,
    )


def progress_to_wire(progress: Progress) -> pb.Progress:
    return pb.Progress(
        epoch=progress.epoch,
        epochs=progress.epochs,
        done=progress.done,
        total=progress.total,
        unit=progress.unit,
        seconds_left=progress.seconds_left,
    )


def memory_to_wire(use: MemoryUse) -> memory_pb2.Memory:
    parts = [memory_pb2.MemoryPart(member=p.member, kind=p.kind, bytes=p.nbytes) for p in use.parts]
    return memory_pb2.Memory(limit=use.limit, total=use.total, parts=parts, rest=use.rest)
