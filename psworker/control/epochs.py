"""The end of an epoch: this worker's sums go to the coordinator, and the sums over all workers come back."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pswire.v1 import coordinator_pb2 as pb
from psworker.control.backoff import Backoff, bounded, insist
from psworker.control.stream import SessionStream
from psworker.errors import Unreachable

# Seconds between two questions: the other workers may be ready in a moment, or after a long evaluation.
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25


@dataclass(frozen=True, slots=True)
class EpochTotals:
    """Sums over `workers` workers.

    `values`: what one worker measured for all. `chief`: the name of the worker that measures from the next epoch on.
    """

    workers: int
    sums: list[float]
    values: dict[str, float]
    chief: str = ""


def gather(
    stream: SessionStream,
    backoff: Backoff,
    number: int,
    layout: str,
    sums: Sequence[float],
    values: Mapping[str, float],
    yields: Callable[[], object] | None = None,
    *,
    after_stop: bool = False,
) -> EpochTotals | None:
    """Ask until all workers have sent their sums. None when the job is over. Raises SessionError.

    `yields`: called when others wait for a ticket that this worker holds. `after_stop`: the job has stopped, and all
    workers gather after its end.
    """

    def ask() -> pb.GatherEpochReply:
        # Not once for all: this worker may become another incarnation meanwhile.
        reply = stream.joined.reply
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
        return cast(pb.GatherEpochReply, stream.stub.GatherEpoch(request))

    pause, over = FIRST_PAUSE, False
    idle = threading.Event()
    while True:
        try:
            reply = bounded(insist(ask, backoff))
        except Unreachable:
            if over or after_stop:
                return None
            raise
        backoff.reset()
        if reply.complete:
            return EpochTotals(reply.workers, list(reply.sums), dict(reply.values), reply.chief)
        if over:
            return None
        if reply.held_up and yields is not None:
            yields()
        if after_stop:
            idle.wait(pause)
        else:
            # Another worker may have ended the job because of this very epoch, which is then complete: ask once more.
            over = stream.over_within(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
