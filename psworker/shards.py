"""Pull and Push: one flat payload between this worker and one server."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from pswire import frames
from pswire.addresses import Address
from pswire.dtypes import WIRE, from_wire, itemsize, to_wire
from pswire.plan import Plan
from pswire.v1 import shard_pb2
from psworker.errors import SessionError
from psworker.retrying import Backoff, insist

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
        self._push: Any = channel.stream_unary("/pswire.v1.Shard/Push", None, shard_pb2.PushReply.FromString)
        self._pull: Any = channel.unary_stream(
            "/pswire.v1.Shard/Pull", shard_pb2.PullRequest.SerializeToString, None
        )

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
        return insist(lambda: self._receive(request), self._backoff())

    def _receive(self, request: shard_pb2.PullRequest) -> Floats:
        values = np.empty(self.elements, np.float32)
        size, received = itemsize(self._dtype), 0
        for message in self._pull(request):
            chunk, _ = frames.parse_pull(message)
            length = chunk.data.nbytes
            if chunk.offset != received or received + length > values.size * size:
                raise SessionError(
                    f"server {self.server} at {self.address}: expected a chunk at offset {received} of "
                    f"{values.size * size} bytes, got {length} bytes at {chunk.offset}"
                )
            from_wire(chunk.data, self._dtype, values[received // size : (received + length) // size])
            received += length
        if received != values.size * size:
            raise SessionError(
                f"server {self.server} at {self.address}: expected {values.size * size} bytes, got {received}"
            )
        return values

    def push(self, ticket: int, values: Floats, after: int) -> bytes:
        """Stage `values` under `ticket`; the receipt. Raises PayloadRefused, Voided, Refused, Unreachable."""
        if values.shape != (self.elements,) or values.dtype != np.float32:
            raise ValueError(
                f"payload for server {self.server}: expected float32 of shape ({self.elements},), "
                f"got {values.dtype} of shape {values.shape}"
            )
        payload = to_wire(np.ascontiguousarray(values), self._dtype)
        header = frames.push_header(
            job=self.job,
            worker=self.worker,
            ticket=ticket,
            plan=self._plan,
            dtype=self._dtype,
            nbytes=payload.nbytes,
            after=after,
        )

        def messages() -> Iterator[bytes]:
            yield header
            for offset, data in frames.chunks(payload):
                yield frames.push_chunk(offset, data)

        reply = insist(lambda: self._push(messages()), self._backoff())
        return bytes(reply.receipt)

    def _backoff(self) -> Backoff:
        return Backoff(self.server, self.address, self._patience, self._closing)
