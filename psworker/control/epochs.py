"""The end of an epoch: this worker's sums to the coordinator, the sums over all workers back."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import grpc

from pswire.transport.connecting import stub_of
from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, insist
from psworker.control.stream import Control
from psworker.errors import Unreachable

# Seconds between two questions: the others are there in a moment, or an evaluation takes long.
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """Over `workers` workers. `values`: what one of them has measured for all. `chief`: the name of the one that does
    so from the next epoch on."""

    workers: int
    sums: list[float]
    values: dict[str, float]
    chief: str = ""


def gather(
    control: Control,
    channel: grpc.Channel,
    backoff: Backoff,
    number: int,
    layout: str,
    sums: Sequence[float],
    values: Mapping[str, float],
    yields: Callable[[], object] | None = None,
    *,
    behind: bool = False,
) -> EpochTotals | None:
    """Ask until all workers have told theirs; None when the job is over. Raises SessionError.

    `yields` is called where others wait for a ticket that this worker holds. `behind`: the end of the job is waited
    for by nobody, and all gather behind it.
    """
    stub = stub_of(channel)

    def ask() -> pb.GatherEpochReply:
        # A member that was given up meanwhile comes back as another incarnation.
        reply = control.joined.reply
        request = pb.GatherEpochRequest(
            job=reply.job,
            worker=reply.worker,
            incarnation=reply.incarnation,
            membership_token=reply.membership_token,
            number=number,
            layout=layout,
            sums=sums,
            values=values,
            yields=yields is not None,
        )
        return cast(pb.GatherEpochReply, stub.GatherEpoch(request))

    pause, over = FIRST_PAUSE, False
    idle = threading.Event()
    while True:
        try:
            reply = bounded(insist(ask, backoff))
        except Unreachable:
            if over or behind:
                return None
            raise
        backoff.reset()
        if reply.complete:
            return EpochTotals(reply.workers, list(reply.sums), dict(reply.values), reply.chief)
        if over:
            return None
        if reply.held_up and yields is not None:
            yields()
        if behind:
            idle.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        # Another one may have ended the job because of this very epoch: then it is complete, and asked for once more.
        over = control.over_within(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
