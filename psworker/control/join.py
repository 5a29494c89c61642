"""Joining a job, and joining it again after a loss of the coordinator."""

import secrets

from pswire.plan import Plan
from pswire.specs import specs_to_wire
from pswire.transport.codecs import codec_named
from pswire.v1 import coordinator_pb2 as pb
from pswire.v1 import coordinator_pb2_grpc
from psworker.control.backoff import Backoff, insist
from psworker.data.shard_group import ShardGroup


class Joining:
    """What one session says at Join. `session` is the secret by which the servers know it again."""

    def __init__(
        self,
        servers: ShardGroup,
        plan: Plan,
        wire_dtype: str,
        name: str | None,
        task_index: int | None,
        backoff: Backoff,
        optimizer: str = "",
    ) -> None:
        self.session = secrets.token_hex(16)
        self._servers = servers
        self._plan = plan
        self._wire_dtype = wire_dtype
        self._name, self._task_index = name, task_index
        self._backoff = backoff
        self._optimizer = optimizer
        self._stub = coordinator_pb2_grpc.CoordinatorStub(servers.control)

    def join(self) -> pb.JoinReply:
        """For the first time, or again: for the same name and part of the data. Raises Refused, Unreachable."""
        request = pb.JoinRequest(
            worker=self._name or "",
            session=self.session,
            variables=specs_to_wire(self._plan.variables),
            plan=self._plan.fingerprint,
            servers=len(self._servers.shards),
            wire_dtype=codec_named(self._wire_dtype).number,
            task_index=self._task_index,
            optimizer=self._optimizer,
        )
        reply = insist(lambda: self._stub.Join(request), self._backoff)
        self._backoff.reset()
        self._name, self._task_index = reply.worker, reply.worker_index
        self._servers.admit(reply)
        return reply
