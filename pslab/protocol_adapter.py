"""Between a client's engine and a coordinator in the same process: what gRPC and its adapters are to daemons."""

import math
from typing import assert_never

from psserver.coordinator import CommitFacts, Coordinator, Output
from psserver.coordinator.outputs import (
    CancelNotice,
    DispositionNotice,
    GrantNotice,
    Notice,
    RefusalNotice,
    StopNotice,
)
from pswire.decisions.entries import UNTOLD
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


def deliver(
    coordinator: Coordinator,
    worker: str,
    incarnation: int,
    request: Request,
    now: float,
    *,
    ordinary: bool = True,
    norm: float = math.nan,
) -> list[Output]:
    """The coordinator's answer to a request of this incarnation of the worker. A report means nothing to it.

    `ordinary`, `norm`: what receipts say of the payload that a commit is about; NaN where nothing is computed.
    """
    match request:
        case Commit():
            told = (request.batch, request.samples, request.loss, norm)
            times = request.times or UNTOLD
            facts = CommitFacts(*told, times, request.learning_rate, ordinary, request.unit_ends)
            return coordinator.commit(worker, incarnation, request.ticket, now, facts, ready=request.ready)
        case Ready():
            return coordinator.ready(worker, incarnation, now, holding=request.holding)
        case Abandon():
            ticket, reason, ends = request.ticket, request.reason, request.unit_ends
            return coordinator.abandon(worker, incarnation, ticket, reason, now, unit_ends=ends)
        case Done():
            return coordinator.done(worker, incarnation, now, ends=request.ends)
        case Leave():
            return coordinator.leave(worker, incarnation, request.reason, now)
        case Report():
            return []
        case _:
            assert_never(request)


def event_of(notice: Notice, now: float) -> Event:
    """What a worker receives of a notice at `now`."""
    match notice:
        case GrantNotice():
            dealt = notice.part
            part = None if dealt is None else UnitPart(dealt.epoch, dealt.unit, dealt.part)
            return Grant(notice.ticket, notice.version, notice.index, notice.initialise, now, part)
        case DispositionNotice(ticket, fate, version, staleness, weight, reason):
            return Disposition(ticket, fate, version, staleness, weight, reason)
        case CancelNotice(ticket, reason):
            return Cancel(ticket, reason)
        case StopNotice():
            return Stop(notice.reason, notice.version, notice.success, notice.evaluate, notice.index)
        case RefusalNotice(message, fatal, ticket):
            return Refusal(message, fatal, ticket)
        case _:
            assert_never(notice)
