"""A worker as one server knows it since the newest Join: its proof of membership, its encoder, its requests."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pswire.messages import COMMITS
from pswire.model.groups import GroupPart, Groups
from pswire.model.plan import Plan
from pswire.model.rows import Rows, WantedRows
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32, Encoder
from pswire.transport.framed_socket import Parts
from pswire.transport.rows import RowFormat, counts_of, row_codec
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2, shard_pb2
from psworker.data.changes import KnownVersion
from psworker.data.payloads import Pieces, array_of
from psworker.engine import Commit

_FILL = COMMITS.fill


class MemberRequests:
    """Makes the requests of one membership. The holder of the server's `turn` uses it.

    The messages of pushes and commits are filled in anew each time, because most of their fields stay the same.
    """

    def __init__(
        self, joined: pb.JoinReply, encoder: Encoder, plan: Plan, server: int, wire: Wire, session: str
    ) -> None:
        self.joined, self.encoder = joined, encoder
        # The groups of rows that take turns, and the version that the worker has, if there are several.
        self.groups = Groups(plan, int(joined.local_rule.knobs.get("fragments", 1)))
        self.known: KnownVersion | None = None
        if self.groups.count > 1:
            self.known = KnownVersion(wire.deltas or wire.down, plan.shards[server], self.groups)
        self._plan, self._server, self._wire = plan, server, wire
        self._proof: dict[str, Any] = {
            "job": joined.job,
            "worker": joined.worker,
            "incarnation": joined.incarnation,
            "membership_token": joined.membership_token,
            "plan": plan.fingerprint,
        }
        answer_dtype = model_pb2.WIRE_DTYPE_UNSPECIFIED if wire.same else wire.down.number
        header = shard_pb2.PushHeader(**self._proof, weights_dtype=answer_dtype)
        hello = pb.Hello(
            job=joined.job, worker=joined.worker, incarnation=joined.incarnation, session=session
        )
        commit = pb.CommitRequest(hello=hello)
        # A push, a commit, and both in one.
        self._push = shard_pb2.ExchangeRequest(push=header)
        self._commit = shard_pb2.ExchangeRequest(commit=commit)
        self._step = shard_pb2.ExchangeRequest(push=header, commit=commit)

    def attach(self, after: int) -> bytes:
        """Ask where the server takes connections."""
        attach = shard_pb2.Attach(**self._proof, after=after)
        return shard_pb2.ExchangeRequest(attach=attach).SerializeToString()

    def claim(self, after: int) -> bytes:
        """Write the first frame of a connection."""
        return shard_pb2.Attach(**self._proof, after=after).SerializeToString()

    def pull(
        self,
        ticket: int,
        version: int,
        after: int,
        *,
        base: shard_pb2.Base | None = None,
        rows: WantedRows = (),
        rows_only: bool = False,
    ) -> list[Parts]:
        """Write a pull. `base`: the version that this worker has, where weights travel as changes. `rows`: of which
        rows of tables to read, too, or `rows_only`."""
        request = shard_pb2.PullRequest(
            **self._proof,
            ticket=ticket,
            version=version,
            dtype=self._wire.down.number,
            after=after,
            base=base,
            rows=counts_of(rows),
            rows_only=rows_only,
        )
        message = shard_pb2.ExchangeRequest(pull=request)
        return list(messages(message, (), RowFormat((), FLOAT32).encode((), rows)))

    def base(self, known: KnownVersion | None) -> shard_pb2.Base | None:
        """Return the version that this worker has, of which only changes have to come; `known`: on that carrier."""
        found = self.known or known
        return None if found is None else found.base

    def whole(self, version: int, after: int, *, slots: bool = False, table: int = 0) -> bytes:
        """Read the optimizer's slots, or all rows of a table, whose number counts from 1."""
        request = shard_pb2.PullRequest(
            **self._proof, version=version, dtype=FLOAT32.number, after=after, slots=slots, table=table
        )
        return shard_pb2.ExchangeRequest(pull=request).SerializeToString()

    def push(
        self, ticket: int, after: int, commit: Commit | None, base: shard_pb2.Base | None
    ) -> shard_pb2.ExchangeRequest:
        """Write a push, with a commit if there is one, valid until the next one. `base` as for `pull`. The caller sets
        dtype and bytes."""
        request = self._push if commit is None else self._step
        push = request.push
        push.ticket, push.after = ticket, after
        if commit is not None:
            _FILL(request.commit.commit, commit)
            if base is None:
                push.ClearField("base")
            else:
                push.base.CopyFrom(base)
        return request

    def commit(self, commit: Commit) -> bytes:
        """Write a commit of what all servers hold."""
        _FILL(self._commit.commit.commit, commit)
        return self._commit.SerializeToString()

    def behind(self, header: shard_pb2.PushHeader, rows: Rows, ahead: WantedRows) -> Sequence[NDArray[Any]]:
        """Return the rows that follow a payload, and announce them in its header. `ahead`: keys of rows to read with
        the next version."""
        tables = self._plan.tables
        if not tables:
            return ()
        header.rows[:] = counts = counts_of(keys for keys, _ in rows)
        header.next_rows[:] = counts_of(ahead)
        return RowFormat(tables, row_codec(self._wire.up), tuple(counts)).encode(rows, ahead)

    def part(self, version: int, payload: NDArray[Any] | Pieces) -> GroupPart | None:
        """Return the part of a contribution to `version` that travels; None for all of it. Raises ValueError if more
        than that is not zero."""
        if self.groups.count == 1:
            return None
        part, rest = self.groups.of(version, self._server), array_of(payload).copy()
        part.put(rest, np.zeros(part.layout.elements, rest.dtype))
        if rest.any():
            place = int(np.flatnonzero(rest)[0])
            raise ValueError(
                f"payload for server {self._server}: expected zeros but for group {version % self.groups.count} of "
                f"{self.groups.count}, got {rest[place]} at element {place}"
            )
        return part


def messages(
    request: shard_pb2.ExchangeRequest, payload: Iterable[NDArray[Any]], rows: Sequence[NDArray[Any]] = ()
) -> Iterator[Parts]:
    """Yield the request with the first chunk of `payload`, which comes in pieces, in the same message, then other
    chunks, and those of `rows` behind them."""
    head: Parts = (request.SerializeToString(),)
    for array in chain(payload, rows):
        for data in frames.chunks(array):
            yield *head, *frames.chunk_field(data)
            head = ()
    if head:
        yield head
