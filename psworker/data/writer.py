"""What a worker gives: its payload to every server, then the commit that makes it count."""

import logging
import time
from collections.abc import Sequence

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire.logs.events import event
from psworker.control.stream import Control
from psworker.data.payloads import Payload
from psworker.data.reader import WeightReader
from psworker.data.shard_client import Answer
from psworker.data.shard_group import ShardGroup
from psworker.data.timing import Stopwatch
from psworker.engine import Commit, Grant
from psworker.errors import Voided

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]


class GradientWriter:
    """In two steps, push and commit; or, with one server, in one, which may bring the next version along."""

    def __init__(
        self, servers: ShardGroup, control: Control, versions: WeightReader, watch: Stopwatch
    ) -> None:
        self._servers = servers
        self._control = control
        self._versions = versions
        self._watch = watch
        # What the servers gave for the payload that is not committed yet, by ticket.
        self._receipts: dict[int, list[bytes]] = {}

    def slots(self, grant: Grant) -> list[Floats]:
        """Where to write the payload. Raises Voided."""
        self._check(grant)
        return [shard.slot() for shard in self._servers.shards]

    def push(self, grant: Grant, flats: Sequence[Payload], *, raw: bool = False) -> None:
        """`raw`: as of `ShardClient.push`. Raises ValueError, PayloadRefused, Voided, Refused, Unreachable."""
        expected = len(self._servers.shards)
        if len(flats) != expected:
            raise ValueError(f"expected {expected} payloads, one per server, got {len(flats)}")
        self._check(grant)
        self._watch.push(grant.ticket)
        self._take_back()
        self._receipts = {
            grant.ticket: self._servers.each(
                lambda shard: shard.push(grant.ticket, flats[shard.server], grant.index, raw=raw)
            )
        }

    def commit(self, commit: Commit) -> None:
        """What was pushed under its ticket counts from now on."""
        receipts = tuple(self._receipts.pop(commit.ticket, ()))
        self._control.commit(commit.measured(self._watch.times(commit.ticket), receipts, self._residual))
        self._keep(commit.ticket)
        self._watch.end()

    def push_and_commit(self, grant: Grant, flats: Sequence[Payload], commit: Commit) -> None:
        """`push` and `commit`, in one step if there is one server only. Raises as `push`."""
        if len(self._servers.shards) > 1:
            self.push(grant, flats)
            self.commit(commit)
            return
        self._check(grant)
        self._watch.push(grant.ticket)
        self._take_back()
        times = self._watch.times(commit.ticket)
        commit = self._control.begin_commit(commit.measured(times, residual=self._residual))
        try:
            answer = self._stepped(grant, flats[0], commit)
        except grpc.RpcError:
            # The answer is lost, perhaps the commit too: both steps again, which counts once.
            self._again(grant, flats, commit)
            return
        except Exception:
            # Refused, or a payload that could not be made or does not fit: nothing was committed.
            self._control.rollback_commit(grant.ticket)
            raise
        self._keep(grant.ticket)
        self._control.receive(answer.events)
        self._watch.end(answer.received)

    @property
    def _residual(self) -> int | None:
        """The same for every server: each was sent the same tickets' payloads."""
        return self._servers.shards[0].residual

    def _take_back(self) -> None:
        """Before a payload is encoded: what a dropped one has left behind does not count."""
        dropped = self._control.dropped
        for shard in self._servers.shards:
            shard.take_back(dropped)

    def _keep(self, ticket: int) -> None:
        for shard in self._servers.shards:
            shard.keep(ticket)

    def _stepped(self, grant: Grant, payload: Payload, commit: Commit) -> Answer:
        """With one server: what came of it; the version that came along is put aside."""
        shard = self._servers.shards[0]
        with shard.turn:
            hello, narrow = self._control.joined.hello, self._versions.narrow
            answer = shard.step(grant.ticket, payload, grant.index, commit, hello, narrow=narrow)
            if answer.granted is not None and answer.version is not None:
                took = time.monotonic() - answer.received
                self._versions.came_along(answer.granted, answer.version, took)
        return answer

    def _again(self, grant: Grant, flats: Sequence[Payload], commit: Commit) -> None:
        try:
            self.push(grant, flats)
        except Voided:
            # Its payload is final, or it was cancelled: the answer to the commit says which.
            told = event("ticket_settled", ticket=grant.ticket)
            log.info("ticket %d was settled while its answer was lost", grant.ticket, extra=told)
        except Exception:
            self._control.rollback_commit(grant.ticket)
            raise
        self.commit(commit)

    def _check(self, grant: Grant) -> None:
        reason = self._control.void(grant.ticket)
        if reason is not None:
            raise Voided(f"ticket {grant.ticket} was cancelled: {reason}")
