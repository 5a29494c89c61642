"""What a worker hears from the coordinator, in its own words."""

from dataclasses import dataclass, field

from pswire.v1 import coordinator_pb2 as pb


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for one unit of work, starting from `version`. `heard`: when, on the monotonic clock."""

    ticket: int
    version: int
    index: int
    initialise: bool = False
    heard: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Disposition:
    """What became of a contribution. `fate`: "applied", "dropped" or, after a reconnection, "unknown"."""

    ticket: int
    fate: str
    version: int = 0
    staleness: int = 0
    weight: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopNotice:
    """The job is over. `evaluate`: this worker is asked to evaluate the final `version` and report."""

    reason: str
    version: int
    success: bool
    evaluate: bool
    index: int


_FATES = {
    pb.Disposition.FATE_APPLIED: "applied",
    pb.Disposition.FATE_DROPPED: "dropped",
    pb.Disposition.FATE_PENDING: "pending",
}


def grant_from_wire(message: pb.Grant, heard: float) -> Grant:
    return Grant(message.ticket, message.version, message.index, message.initialise, heard)


def disposition_from_wire(message: pb.Disposition) -> Disposition:
    fate = _FATES.get(message.fate, "unknown")
    return Disposition(
        message.ticket, fate, message.version, message.staleness, message.weight, message.reason
    )


def stop_from_wire(message: pb.Stop) -> StopNotice:
    return StopNotice(message.reason, message.version, message.success, message.evaluate, message.index)
