"""A worker as one server knows it since the newest Join: its proof of membership, its encoder, its requests."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from pswire.messages import COMMITS
from pswire.model.groups import Groups
from pswire.model.plan import Plan
from pswire.model.rows import WantedRows
from pswire.transport import frames
from pswire.transport.codecs import FLOAT32, Encoder
from pswire.transport.framed_socket import Parts
from pswire.transport.rows import RowFormat, counts_of
from pswire.transport.wire import Wire
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import model_pb2, shard_pb2
from psworker.data.changes import KnownGroups, KnownVersion
from psworker.engine import Commit

_FILL = COMMITS.fill


class MemberRequests:
    """Makes the requests of one membership. The holder of the server's `turn` uses it.

    The two push requests are filled in anew for each payload, because most of their fields stay the same.
    """

    __slots__ = (
        "_hello",
        "_plan",
        "_proof",
        "_push",
        "_step",
        "_weights",
        "encoder",
        "groups",
        "joined",
        "known",
    )

    def __init__(self, joined: pb.JoinReply, encoder: Encoder, plan: Plan, server: int, wire: Wire) -> None:
        self.joined, self.encoder = joined, encoder
        # The groups of rows that take turns, and the version that the worker has, if there are several.
        self.groups = Groups(plan, int(joined.local_rule.knobs.get("fragments", 1)))
        self.known: KnownGroups | None = None
        if self.groups.count > 1:
            elements = plan.shards[server].elements
            self.known = KnownGroups(self.groups, server, wire.deltas or wire.down, elements)
        self._plan, self._weights = plan.fingerprint, wire.down.number
        self._proof: dict[str, Any] = {
            "job": joined.job,
            "worker": joined.worker,
            "incarnation": joined.incarnation,
            "membership_token": joined.membership_token,
            "plan": plan.fingerprint,
        }
        answer_dtype = model_pb2.WIRE_DTYPE_UNSPECIFIED if wire.same else wire.down.number
        header = shard_pb2.PushHeader(**self._proof, weights_dtype=answer_dtype)
        self._push = shard_pb2.ExchangeRequest(push=header)
        # The push that carries a commit. `_hello` is the one that it holds.
        self._step = shard_pb2.ExchangeRequest(push=header)
        self._hello: pb.Hello | None = None

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
            dtype=self._weights,
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

    def push(self, ticket: int, after: int) -> shard_pb2.ExchangeRequest:
        """Write a push, valid until the next one. The caller sets dtype and bytes."""
        return self._filled(self._push, ticket, after)

    def step(
        self, ticket: int, after: int, commit: Commit, hello: pb.Hello, base: shard_pb2.Base | None = None
    ) -> shard_pb2.ExchangeRequest:
        """Write a push with the commit; `base` as for `pull`."""
        request = self._step
        if base is not None:
            request.push.base.CopyFrom(base)
        if self._hello is not hello:
            request.commit.hello.CopyFrom(hello)
            self._hello = hello
        _FILL(request.commit.commit, commit)
        return self._filled(request, ticket, after)

    def _filled(
        self, request: shard_pb2.ExchangeRequest, ticket: int, after: int
    ) -> shard_pb2.ExchangeRequest:
        request.push.ticket, request.push.after = ticket, after
        return request


def commit_request(commit: Commit, hello: pb.Hello) -> bytes:
    """Write a commit of what all servers hold."""
    request = shard_pb2.ExchangeRequest(commit=pb.CommitRequest(hello=hello))
    _FILL(request.commit.commit, commit)
    return request.SerializeToString()


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
