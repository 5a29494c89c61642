"""Between our own types and the wire's. Coordinator, policies and shards never see a message; the service does."""

from collections.abc import Iterable

from psserver.coordinator import outputs
from psserver.coordinator.entries import UNTOLD, CommitFacts, Times
from psserver.coordinator.status import JobReport, WorkerReport
from psserver.coordinator.work.units import MOST_DESCRIPTION, WorkTerms
from psserver.service.job.progress import HowFar as Progress
from psserver.service.limits.ledger import MemoryUse
from psserver.shard import orders
from pswire.logs.texts import escaped
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import memory_pb2, shard_pb2

# Characters of a sentence to a worker: a policy of somebody's own may say anything.
SENTENCE = 2000

_FATES = {
    "applied": pb.Disposition.FATE_APPLIED,
    "dropped": pb.Disposition.FATE_DROPPED,
    "pending": pb.Disposition.FATE_PENDING,
}


def add_events(notices: Iterable[outputs.Notice], reply: pb.SessionReply | shard_pb2.ExchangeReply) -> None:
    """`notices` as the events of `reply`. Those of every step are written where they stay: to make each for itself, and
    copy it, takes twice as long."""
    for notice in notices:
        event = reply.events.add()
        if isinstance(notice, outputs.GrantNotice) and notice.part is None:
            grant = event.grant
            grant.ticket, grant.version, grant.index = notice.ticket, notice.version, notice.index
            grant.initialise = notice.initialise
        elif isinstance(notice, outputs.DispositionNotice) and not notice.reason:
            told = event.disposition
            told.ticket, told.fate, told.version = notice.ticket, _FATES[notice.fate], notice.version
            told.staleness, told.weight = notice.staleness, notice.weight
        else:
            event.CopyFrom(event_to_wire(notice))


def event_to_wire(notice: outputs.Notice) -> pb.SessionEvent:
    match notice:
        case outputs.GrantNotice(ticket, version, index, initialise, part):
            grant = pb.Grant(ticket=ticket, version=version, index=index, initialise=initialise)
            if part is not None:
                grant.part.CopyFrom(pb.UnitPart(epoch=part.epoch, unit=part.unit, part=part.part))
            return pb.SessionEvent(grant=grant)
        case outputs.CancelNotice(ticket, reason):
            return pb.SessionEvent(cancel=pb.Cancel(ticket=ticket, reason=escaped(reason, SENTENCE)))
        case outputs.DispositionNotice(ticket, fate, version, staleness, weight, reason):
            disposition = pb.Disposition(
                ticket=ticket,
                fate=_FATES[fate],
                version=version,
                staleness=staleness,
                weight=weight,
                reason=escaped(reason, SENTENCE),
            )
            return pb.SessionEvent(disposition=disposition)
        case outputs.StopNotice(reason, version, success, index, evaluate):
            said = escaped(reason, SENTENCE)
            stop = pb.Stop(reason=said, version=version, success=success, index=index, evaluate=evaluate)
            return pb.SessionEvent(stop=stop)
        case outputs.RefusalNotice(message, fatal, ticket):
            return pb.SessionEvent(
                refusal=pb.Refusal(message=escaped(message, SENTENCE), fatal=fatal, ticket=ticket)
            )


def facts_from_wire(commit: pb.Commit, *, ordinary: bool, norm: float) -> CommitFacts:
    """`ordinary`, `norm`: of the payload that the servers hold; nobody's word is taken for it."""
    sent = commit.times
    times = Times(sent.pull, sent.compute, sent.before or None) if commit.HasField("times") else UNTOLD
    rate = commit.learning_rate if commit.HasField("learning_rate") else None
    told = (commit.batch, commit.samples, commit.loss, norm)
    return CommitFacts(*told, times, rate, ordinary, commit.unit_ends)


def work_from_wire(request: pb.JoinRequest) -> WorkTerms | None:
    """What the worker says of how its data is dealt. Raises WorkError for numbers that make no sense."""
    if not request.HasField("work"):
        return None
    sent = request.work
    data = escaped(sent.data, MOST_DESCRIPTION)
    terms = WorkTerms(sent.units, sent.epochs, sent.batches, data, sent.apart)
    terms.check()
    return terms


def order_to_wire(index: int, order: orders.Order) -> shard_pb2.Decision:
    match order:
        case orders.Pin(ticket, version, turn, initialise, worker):
            pin = shard_pb2.PinVersion(
                ticket=ticket, version=version, turn=turn, initialise=initialise, worker=worker
            )
            return shard_pb2.Decision(index=index, pin=pin)
        case orders.Install(ticket):
            return shard_pb2.Decision(index=index, install=shard_pb2.Install(ticket=ticket))
        case orders.Seal(ticket):
            return shard_pb2.Decision(index=index, seal=shard_pb2.Seal(ticket=ticket))
        case orders.Fold():
            return shard_pb2.Decision(index=index, fold=_fold_to_wire(order))
        case orders.Apply():
            return shard_pb2.Decision(index=index, apply=apply_to_wire(order))
        case orders.Discard():
            return shard_pb2.Decision(index=index, discard=True)
        case orders.Release(ticket):
            return shard_pb2.Decision(index=index, release=shard_pb2.Release(ticket=ticket))
        case orders.Admit(worker, incarnation):
            admit = shard_pb2.Admit(worker=worker, incarnation=incarnation)
            return shard_pb2.Decision(index=index, admit=admit)
        case orders.Dismiss(worker, kept):
            return shard_pb2.Decision(index=index, dismiss=shard_pb2.Dismiss(worker=worker, kept=kept))
        case orders.Save(version):
            return shard_pb2.Decision(index=index, save=shard_pb2.Save(version=version))
        case orders.Note():
            return shard_pb2.Decision(index=index, note=True)


def order_from_wire(decision: shard_pb2.Decision) -> orders.Order:
    """Raises ValueError for a decision of a kind that this version does not know."""
    match decision.WhichOneof("decision"):
        case "pin":
            pin = decision.pin
            turn = pin.turn if pin.HasField("turn") else None
            return orders.Pin(pin.ticket, pin.version, turn, pin.initialise, pin.worker)
        case "install":
            return orders.Install(decision.install.ticket)
        case "seal":
            return orders.Seal(decision.seal.ticket)
        case "fold":
            return _fold_from_wire(decision.fold)
        case "apply":
            return apply_from_wire(decision.apply)
        case "discard":
            return orders.Discard()
        case "release":
            return orders.Release(decision.release.ticket)
        case "admit":
            return orders.Admit(decision.admit.worker, decision.admit.incarnation)
        case "dismiss":
            return orders.Dismiss(decision.dismiss.worker, decision.dismiss.kept)
        case "save":
            return orders.Save(decision.save.version)
        case "note":
            return orders.Note()
        case other:
            raise ValueError(
                f"decision {decision.index} is of kind {other!r}, which this server does not know"
            )


def apply_to_wire(apply: orders.Apply) -> shard_pb2.Apply:
    parts = [_fold_to_wire(part) for part in apply.parts]
    return shard_pb2.Apply(version=apply.version, scale=apply.scale, lr_scale=apply.lr_scale, parts=parts)


def apply_from_wire(apply: shard_pb2.Apply) -> orders.Apply:
    parts = tuple(_fold_from_wire(part) for part in apply.parts)
    return orders.Apply(apply.version, apply.scale, apply.lr_scale, parts)


def _fold_to_wire(fold: orders.Fold) -> shard_pb2.Fold:
    return shard_pb2.Fold(ticket=fold.ticket, factor=fold.factor, compensation=fold.compensation)


def _fold_from_wire(fold: shard_pb2.Fold) -> orders.Fold:
    return orders.Fold(fold.ticket, fold.factor, fold.compensation)


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
