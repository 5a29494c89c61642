"""Pull, push and step: one flat payload between this worker and one server."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import frames
from pswire.addresses import Address
from pswire.dtypes import WIRE, to_wire
from pswire.plan import Plan
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import shard_pb2
from psworker.errors import SessionError
from psworker.exchange import Exchange
from psworker.retrying import MEANING, Backoff, insist, translated

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]


class ShardClient:
    """One server's data plane. Calls repeat while the server does not answer; both are idempotent."""

    def __init__(
        self,
        server: int,
        address: Address,
        channel: grpc.Channel,
        plan: Plan,
        dtype: str,
        patience: float,
        closing: threading.Event,
    ) -> None:
        self.server = server
        self.address = address
        self.elements = plan.shards[server].elements
        # Set at every (re)join.
        self.job = ""
        self.worker = ""
        self._plan = plan.fingerprint
        self._dtype = dtype
        self._patience = patience
        self._closing = closing
        self._exchange = Exchange(channel)

    def pull(self, ticket: int, version: int, after: int) -> Floats:
        """The payload of `version`. Raises Voided when it is gone, Refused, Unreachable."""
        request = shard_pb2.PullRequest(
            job=self.job,
            ticket=ticket,
            version=version,
            plan=self._plan,
            dtype=WIRE[self._dtype],
            after=after,
        )
        message = shard_pb2.ExchangeRequest(pull=request).SerializeToString()
        return insist(lambda: self._received(*self._exchange.ask([message])), self._backoff())

    def _received(self, first: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None) -> Floats:
        values = np.empty(self.elements, np.float32)
        self._exchange.payload(first, chunk, self._dtype, values)
        return values

    def push(self, ticket: int, values: Floats, after: int) -> bytes:
        """Stage `values` under `ticket`; the receipt. Raises PayloadRefused, Voided, Refused, Unreachable."""
        payload = self._payload(values)
        reply, _ = insist(lambda: self._exchange.ask(self._messages(ticket, payload, after)), self._backoff())
        return bytes(reply.receipt)

    def step(
        self, ticket: int, values: Floats, after: int, commit: pb.Commit, hello: pb.Hello
    ) -> tuple[list[pb.SessionEvent], Floats | None]:
        """Push and commit in one round trip; what came of it, and the version that was granted next.

        Only for a job with one server. Tried once: raises grpc.RpcError when the
        answer does not come; whether the commit counted is then for the session to find out.
        Otherwise as `push`.
        """
        payload = self._payload(values)
        try:
            reply, chunk = self._exchange.ask(self._messages(ticket, payload, after, commit, hello))
        except grpc.RpcError as error:
            if error.code() in MEANING:
                raise translated(error, f"server {self.server} at {self.address}") from error
            raise
        return list(reply.events), self._version(reply, chunk)

    def _version(self, reply: shard_pb2.ExchangeReply, chunk: frames.ChunkView | None) -> Floats | None:
        """The version that came with the answer. None when it did not come whole: it is pulled later."""
        if chunk is None:
            return None
        try:
            return self._received(reply, chunk)
        except (grpc.RpcError, SessionError) as error:
            log.info("the version that came with the grant was cut off: %s", error)
            return None

    def _payload(self, values: Floats) -> NDArray[Any]:
        if values.shape != (self.elements,) or values.dtype != np.float32:
            raise ValueError(
                f"payload for server {self.server}: expected float32 of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )
        return to_wire(np.ascontiguousarray(values), self._dtype)

    def _messages(
        self,
        ticket: int,
        payload: NDArray[Any],
        after: int,
        commit: pb.Commit | None = None,
        hello: pb.Hello | None = None,
    ) -> Iterator[bytes]:
        """The header, with the first chunk in the same message, then the other chunks."""
        header = shard_pb2.PushHeader(
            job=self.job,
            worker=self.worker,
            ticket=ticket,
            plan=self._plan,
            dtype=WIRE[self._dtype],
            bytes=payload.nbytes,
            after=after,
        )
        request = shard_pb2.ExchangeRequest(push=header, commit=commit, hello=hello)
        head = request.SerializeToString()
        for offset, data in frames.chunks(payload):
            yield b"".join([head, *frames.chunk_field(offset, data)])
            head = b""
        if head:
            yield head

    def close(self) -> None:
        self._exchange.close()

    def _backoff(self) -> Backoff:
        return Backoff(self.server, self.address, self._patience, self._closing)
