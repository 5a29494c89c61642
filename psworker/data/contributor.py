"""The contributions of one worker: payloads to all servers, and the commit to server 0, each exactly once."""

from collections.abc import Callable, Sequence

from pswire import running
from pswire.model.rows import NO_ROWS, RowLayout, RowsByName
from pswire.transport.wire import Wire
from psworker.control.stream import SessionStream
from psworker.data.payloads import Payload
from psworker.data.reader import WeightReader
from psworker.data.shard_client import CommitAnswer, ShardClient
from psworker.data.shard_group import ShardGroup
from psworker.data.timing import Stopwatch
from psworker.engine import Commit, Grant
from psworker.errors import Voided


class Contributor:
    """Pushes and commits. The training loop's thread uses it.

    Methods raise Voided when the ticket was cancelled, PayloadRefused for NaN and Inf, Refused, Unreachable.
    """

    def __init__(
        self,
        servers: ShardGroup,
        stream: SessionStream,
        reader: WeightReader,
        watch: Stopwatch,
        layout: RowLayout,
        wire: Wire,
    ) -> None:
        self._servers, self._stream, self._reader = servers, stream, reader
        self._watch, self._layout, self._wire = watch, layout, wire
        # The ticket whose payload was encoded last, by a codec that remembers.
        self._encoded = 0

    def contribute(self, grant: Grant, flats: Sequence[Payload], commit: Commit, rows: RowsByName) -> None:
        """Push one payload per server, and sums of gradients of rows, and commit them. With a single server one
        exchange carries all, and may bring the next grant and its version."""
        if len(self._servers.shards) > 1:
            self.commit(grant, commit, self.push(grant, flats, rows))
        else:
            self._push_with_commit(grant, flats, commit, rows)

    def push(
        self, grant: Grant, flats: Sequence[Payload], rows: RowsByName = NO_ROWS, *, raw: bool = False
    ) -> tuple[bytes, ...]:
        """Send to all servers, and return their receipts for the commit. `raw`: as of `ShardClient.push`."""
        expected = len(self._servers.shards)
        if len(flats) != expected:
            raise ValueError(f"expected {expected} payloads, one per server, got {len(flats)}")
        divided = self._layout.rows(rows) if rows else [()] * expected
        self._begin_push(grant)

        def push(shard: ShardClient) -> bytes:
            own = divided[shard.server]
            return shard.push(
                *(grant.ticket, flats[shard.server], grant.index), version=grant.version, raw=raw, rows=own
            )

        return tuple(self._servers.each(push))

    def _begin_push(self, grant: Grant) -> None:
        self._require_valid(grant)
        self._watch.push(grant.ticket)
        if self._wire.up.remembers and self._encoded != grant.ticket:
            # Before a payload is first encoded: the residual of a dropped payload does not count. A payload that is
            # sent again has the bytes that the servers may hold already.
            self._encoded, dropped = grant.ticket, self._stream.dropped
            for shard in self._servers.shards:
                shard.encoder.take_back(dropped)

    def _require_valid(self, grant: Grant) -> None:
        reason = self._stream.void(grant.ticket)
        if reason is not None:
            raise Voided(f"ticket {grant.ticket} was cancelled: {reason}")

    def _measured(self, commit: Commit, receipts: tuple[bytes, ...] = ()) -> Commit:
        """Return the commit to send, and expect its answer."""
        # Every server was sent payloads of the same tickets, so the residual's ticket is the same for all.
        times, residual = self._watch.times(commit.ticket), self._servers.shards[0].encoder.base
        return self._stream.commit(commit.measured(times, receipts, residual))

    def commit(self, grant: Grant, commit: Commit, receipts: tuple[bytes, ...]) -> None:
        """Commit what all servers hold."""
        self._require_valid(grant)
        measured = self._measured(commit, receipts)
        self._send(grant, lambda shard: shard.commit(grant.index, measured))

    def _send(self, grant: Grant, send: Callable[[ShardClient], CommitAnswer]) -> None:
        """Send a commit to server 0 until it is answered, and take the answer. Raises Voided if the ticket came to
        nothing."""
        ticket = grant.ticket
        try:
            result = self._servers.first(send)
        except BaseException as error:
            if self._stream.take_back(ticket) or not isinstance(error, Voided):
                raise
            # This worker has joined again, and learned that the commit counted.
            self._keep_residuals(ticket)
            self._watch.end()
            return
        in_hand = self._stream.answered_commit(ticket, result.events)
        self._watch.end(result.received)
        if in_hand:
            self._require_valid(grant)
        self._keep_residuals(ticket)

    def _keep_residuals(self, ticket: int) -> None:
        if self._wire.up.remembers:
            for shard in self._servers.shards:
                shard.encoder.keep(ticket)

    def _push_with_commit(
        self, grant: Grant, flats: Sequence[Payload], commit: Commit, rows: RowsByName
    ) -> None:
        """With one server: one exchange carries both, and may bring the next grant and its version."""
        own = self._layout.rows(rows)[0] if rows else ()
        self._begin_push(grant)
        measured, reader = self._measured(commit), self._reader

        def step(shard: ShardClient) -> CommitAnswer:
            ahead = reader.wanted[0] if reader.wanted else ()
            facts = grant.ticket, flats[0], grant.index, measured
            with shard.carrier.turn:
                result = shard.step(
                    *facts, version=grant.version, narrow=reader.narrow, rows=own, ahead=ahead
                )
                if result.granted is not None and result.version is not None:
                    delay = running.system() - result.received
                    reader.store_ahead(result.granted, result.version, delay)
            return result

        self._send(grant, step)
