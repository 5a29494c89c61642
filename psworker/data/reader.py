"""The versions that a worker was granted: pulled, fetched ahead, or received with the answer to a commit."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire.model.rows import ReceivedRows, WantedRows, same_keys
from psworker.ahead import Ahead
from psworker.control.stream import SessionStream
from psworker.data.payloads import Floats, Received
from psworker.data.shard_client import ShardClient
from psworker.data.shard_group import ShardGroup
from psworker.data.timing import Stopwatch
from psworker.engine import Grant, Stop
from psworker.errors import SessionError

# Numpy's own object, which most float32 arrays have: identity is quicker to test than equality.
_FLOAT32 = np.dtype(np.float32)


Fetched = tuple[int, "list[Received] | SessionError | None"]
"""The version of a ticket, by server (None if it came in another way), or why it did not come."""


class WeightReader:
    """Reads granted versions, as one array per server.

    The training loop's thread uses it. With `prefetches` another one waits for the next grant and pulls its version,
    while the loop computes; it runs `_fetch` only, and shares `_along`, under `_guard`.
    """

    def __init__(self, servers: ShardGroup, stream: SessionStream, watch: Stopwatch, prefetch: bool) -> None:
        self._servers, self._stream, self._watch = servers, stream, watch
        self.prefetches = prefetch
        self._ahead = Ahead() if prefetch else None
        # What that thread fetches, or has fetched, and the ticket that is computed on meanwhile.
        self.under_way: Future[Fetched | None] | None = None
        self._during = 0
        self._guard = threading.Lock()
        # The next grant's version, if it came with the answer to a commit, and its delay in seconds. Stored before the
        # first server's `turn` is released, and before the grant is told.
        self._along: dict[int, tuple[list[Received], float]] = {}
        # Whether the loop last read in the wire dtype or as float32. The loop's thread only.
        self.narrow = False
        # By server, the rows of tables to read with the next version that is pulled; and those that came with the
        # newest, and its ticket.
        self.wanted: Sequence[WantedRows] = ()
        self._rows: tuple[int, Sequence[ReceivedRows | None]] = (0, ())

    def copied(self, grant: Grant) -> list[Floats]:
        """Return float32 arrays that the caller may keep. Raises Voided, Refused, Unreachable."""
        since = self._watch.now()
        try:
            return [received.copied() for received in self._take(grant)]
        finally:
            self._watch.waited(since)

    def view(self, grant: Grant, narrow: bool) -> "VersionView":
        """Return a `with` block that reads the version, in place if that blocks no update. Entering raises as
        `copied`."""
        return VersionView(self, grant, narrow)

    def begin(self, grant: Grant, narrow: bool) -> tuple[list[Received], list[NDArray[Any]]]:
        """Return the version, and its arrays to read until it is released."""
        self.narrow = narrow
        since = self._watch.now()
        try:
            received = self._take(grant)
            try:
                pairs = zip(received, self._servers.shards, strict=True)
                return received, [self._readable(each, shard, narrow) for each, shard in pairs]
            except BaseException:
                _release(received)
                raise
        finally:
            self._watch.waited(since)

    def rows(self, grant: Grant, wanted: Sequence[WantedRows]) -> list[ReceivedRows]:
        """Return rows of tables at the granted version. Asks the servers only for what has not come with it.

        A ticket's rows are kept until it has read some; after an update others may be gone. Raises Voided, Refused,
        Unreachable.
        """
        ticket, came = self._rows
        since = self._watch.now()
        try:

            def rows_of(shard: ShardClient) -> ReceivedRows:
                own = wanted[shard.server]
                here = came[shard.server] if ticket == grant.ticket and came else None
                if here is not None and same_keys(here.keys, own):
                    return here
                return shard.pull_rows(grant.ticket, grant.version, grant.index, own)

            return self._servers.each(rows_of)
        finally:
            self._watch.waited(since)

    def final(self, stop: Stop) -> list[Floats]:
        """Return the job's last version, as `copied`, without a ticket."""
        return self._servers.each(lambda shard: shard.pull(0, stop.version, stop.index).copied())

    def store_ahead(self, ticket: int, received: Received, seconds: float) -> None:
        """Store the version of `ticket` that came with the answer to a commit, `seconds` after the grant."""
        with self._guard:
            self._along = {ticket: ([received], seconds)}

    def fetch_ahead(self, ticket: int, rows: Sequence[WantedRows] = ()) -> None:
        """Fetch the next version, with these rows of tables, while `ticket`, whose version has been read, is computed
        on. No-op without prefetch, and while a fetch is under way."""
        if self._ahead is not None and self.under_way is None:
            # Before the ticket's commit, which then need not ask.
            self._stream.ask_ahead(ticket)
            self._during = ticket
            self.under_way = self._ahead.submit(partial(self._fetch, ticket, self.narrow, rows))

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _take(self, grant: Grant) -> list[Received]:
        received = self._taken(grant)
        self._rows = grant.ticket, [each.rows for each in received]
        return received

    def _taken(self, grant: Grant) -> list[Received]:
        fetched = self._fetched(grant.ticket)
        with self._guard:
            along = self._along.pop(grant.ticket, None)
        if along is not None:
            received, seconds = along
            self._watch.pulled(seconds)
            return received
        return fetched or self._pulled(grant)

    def _fetched(self, ticket: int) -> list[Received] | None:
        """Return the version of the ticket if it was fetched ahead. Raises what its pull raised."""
        if self.under_way is None or ticket <= self._during:
            return None
        under_way, self.under_way = self.under_way, None
        found = under_way.result()
        if found is None or found[0] != ticket:
            # Fetched for a ticket that was cancelled since.
            return None
        if isinstance(found[1], SessionError):
            raise found[1]
        return found[1]

    def _pulled(self, grant: Grant) -> list[Received]:
        narrow, wanted = self.narrow, self.wanted

        def pulled(shard: ShardClient) -> Received:
            rows = wanted[shard.server] if wanted else ()
            return shard.pull(grant.ticket, grant.version, grant.index, narrow=narrow, rows=rows)

        return self._servers.each(pulled)

    def _fetch(self, after: int, narrow: bool, rows: Sequence[WantedRows]) -> Fetched | None:
        """Wait for the grant after that ticket's, and pull its version. None: the job is over."""
        grant = self._stream.wait_next_grant(after)
        if grant is None:
            return None
        try:
            return grant.ticket, self._fetch_version(grant, narrow, rows)
        except SessionError as error:
            return grant.ticket, error

    def _fetch_version(self, grant: Grant, narrow: bool, rows: Sequence[WantedRows]) -> list[Received] | None:
        """Fetch in the other thread what `_pulled` returns. None when the version came with the grant."""
        shards = self._servers.shards
        with nullcontext() if shards[0].fetches_apart else shards[0].carrier.turn:
            with self._guard:
                if grant.ticket in self._along:
                    return None
            if len(shards) == 1:
                return [self._pulled_early(shards[0], grant, narrow, rows)]
        return self._servers.each(lambda shard: self._pulled_early(shard, grant, narrow, rows))

    def _pulled_early(
        self, shard: ShardClient, grant: Grant, narrow: bool, rows: Sequence[WantedRows]
    ) -> Received:
        """Pull a version that may wait here unread for a long time: in place only if that blocks no update.

        Reads in place end in the order of their tickets.
        """
        own = rows[shard.server] if rows else ()
        facts = grant.ticket, grant.version, grant.index
        received = shard.pull(*facts, narrow=narrow, rows=own, ahead=True)
        if received.lender is not None and not self._blocks_no_update(shard):
            received.copied()
        return received

    def _readable(self, received: Received, shard: ShardClient, narrow: bool) -> NDArray[Any]:
        if received.lender is not None and not self._blocks_no_update(shard):
            return received.copied()
        values = received.values
        return values if narrow or values.dtype is _FLOAT32 else values.astype(np.float32, copy=False)

    def _blocks_no_update(self, shard: ShardClient) -> bool:
        """Whether the server has room for the versions that all workers read, beside the newest and the next."""
        held = self._stream.joined.info.size * (2 if self.prefetches else 1)
        return held < shard.arena_versions


class VersionView:
    """A version, read within a `with` block. A class, because a generator's block takes three times as long."""

    __slots__ = ("_grant", "_narrow", "_reader", "_received")

    def __init__(self, reader: WeightReader, grant: Grant, narrow: bool) -> None:
        self._reader, self._grant, self._narrow = reader, grant, narrow
        self._received: list[Received] = []

    def __enter__(self) -> list[NDArray[Any]]:
        self._received, readable = self._reader.begin(self._grant, self._narrow)
        return readable

    def __exit__(self, *_: object) -> None:
        _release(self._received)


def _release(received: list[Received]) -> None:
    for each in received:
        each.release()
