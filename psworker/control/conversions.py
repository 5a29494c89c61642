"""Between the engine's messages and the wire's. Wire types go no further than the folders `control` and `data`."""

from typing import TypeVar, assert_never

from google.protobuf.message import Message

from pswire.bounds import BoundError, check
from pswire.logs.texts import escaped
from pswire.v1 import coordinator_pb2 as pb
from psworker.engine import (
    Abandon,
    Cancel,
    Commit,
    Disposition,
    Done,
    Event,
    Grant,
    Leave,
    Ready,
    Refusal,
    Report,
    Request,
    Stop,
    UnitPart,
)
from psworker.errors import SessionError
from psworker.work import WorkUnits

M = TypeVar("M", bound=Message)

# Characters of a reason, as far as it is kept.
REASON = 2000

_FATES = {
    pb.Disposition.FATE_APPLIED: "applied",
    pb.Disposition.FATE_DROPPED: "dropped",
    pb.Disposition.FATE_PENDING: "pending",
}


def request_to_wire(request: Request) -> pb.SessionRequest:
    match request:
        case Ready(holding):
            return pb.SessionRequest(ready=pb.Ready(holding=holding))
        case Commit():
            return pb.SessionRequest(commit=commit_to_wire(request))
        case Abandon(ticket, reason, unit_ends):
            return pb.SessionRequest(abandon=pb.Abandon(ticket=ticket, reason=reason, unit_ends=unit_ends))
        case Done(ends):
            return pb.SessionRequest(done=pb.Done(ends=ends))
        case Leave(reason):
            return pb.SessionRequest(leave=pb.Leave(reason=reason))
        case Report(version, metrics):
            return pb.SessionRequest(report=pb.Report(version=version, metrics=dict(metrics)))
        case _:
            assert_never(request)


def commit_to_wire(commit: Commit) -> pb.Commit:
    message = pb.Commit(receipts=commit.receipts)
    fill_commit(message, commit)
    return message


def fill_commit(message: pb.Commit, commit: Commit) -> None:
    """All of `commit` but its receipts, into a message that may hold an earlier one: half the time of a new one."""
    message.ticket, message.batch, message.samples = commit.ticket, commit.batch, commit.samples
    message.loss, message.ready = commit.loss, commit.ready
    if commit.times is None:
        message.ClearField("times")
    else:
        times, (pull, compute, before) = message.times, commit.times
        times.pull, times.compute, times.before = pull or 0.0, compute or 0.0, before or 0.0
    if commit.learning_rate is not None:
        message.learning_rate = commit.learning_rate
    else:
        message.ClearField("learning_rate")
    message.unit_ends = commit.unit_ends


def work_to_wire(work: WorkUnits, epochs: int) -> pb.WorkUnits:
    return pb.WorkUnits(
        units=work.count, epochs=epochs, batches=work.batches_each, data=str(work), apart=work.apart
    )


def bounded(reply: M) -> M:
    """The server's message itself. Raises SessionError when a field is beyond its bound, as no server of ours sends."""
    try:
        check(reply)
    except BoundError as error:
        raise beyond(error) from error
    return reply


def _part_from_wire(part: pb.UnitPart) -> UnitPart:
    return UnitPart(part.epoch, part.unit, part.part)


def beyond(error: BoundError) -> SessionError:
    """What a message stands for that no server of ours sends."""
    return SessionError(f"the server sent what no ps-server sends: {error}")


def event_from_wire(message: pb.SessionEvent, received_at: float) -> Event | None:
    """None for an event that means nothing to the engine: a stream's welcome, and kinds of newer servers.

    Texts are escaped: they end up in logs and errors.
    `received_at`: seconds on the monotonic clock.
    """
    match message.WhichOneof("event"):
        case "grant":
            grant = message.grant
            part = _part_from_wire(grant.part) if grant.HasField("part") else None
            return Grant(grant.ticket, grant.version, grant.index, grant.initialise, part, received_at)
        case "cancel":
            return Cancel(message.cancel.ticket, escaped(message.cancel.reason, REASON))
        case "disposition":
            made = message.disposition
            fate, reason = _FATES.get(made.fate, "unknown"), made.reason
            # Usually there is none.
            reason = reason and escaped(reason, REASON)
            return Disposition(made.ticket, fate, made.version, made.staleness, made.weight, reason)
        case "stop":
            stop = message.stop
            return Stop(escaped(stop.reason, REASON), stop.version, stop.success, stop.index, stop.evaluate)
        case "refusal":
            refusal = message.refusal
            return Refusal(escaped(refusal.message, REASON), refusal.fatal, refusal.ticket)
        case _:
            return None
