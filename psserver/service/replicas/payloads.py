"""Payloads: a primary forwards each before it gives the receipt, and a follower stages it."""

import json
import struct
from collections.abc import Awaitable, Callable

import grpc
import numpy as np

from psserver.service.errors import Refused
from psserver.service.guard.calls import Caller
from psserver.service.replicas.bodies import Body
from psserver.service.store.admission import PushSlots
from psserver.service.store.host import ShardHost
from psserver.shard import Shard
from psserver.shard.staging import Slot

_LENGTH = struct.Struct("<I")
# Numbers begin at multiples of so many bytes of an item, whose first byte says its kind.
_ALIGNED = 64


def encode(slot: Slot) -> list[Body]:
    """Return the parts of a complete payload, with what the shard found out about it."""
    about = {"ticket": slot.ticket, "ordinary": slot.ordinary, "squares": slot.squares}
    header = json.dumps(about).encode()
    header += b" " * (-(1 + _LENGTH.size + len(header)) % _ALIGNED)
    return [_LENGTH.pack(len(header)), header, slot.values.data.cast("B")]


def stage(shard: Shard, body: memoryview) -> None:
    """Stage a payload, if its ticket still takes one."""
    (length,) = _LENGTH.unpack_from(body)
    about = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    values = np.frombuffer(body, np.float32, offset=_LENGTH.size + length)
    if shard.refusal(about["ticket"]) is not None:
        return
    slot = shard.staging.begin(about["ticket"])
    slot.values[...] = values
    slot.ordinary, slot.squares = about["ordinary"], about["squares"]
    shard.staging.finish(slot)


class ForwardedPushes(PushSlots):
    """Pushes to a primary. `leads`: whether this server is it; `forward`: takes the parts of each complete payload."""

    def __init__(
        self, host: ShardHost, leads: Callable[[], bool], forward: Callable[[list[Body]], None]
    ) -> None:
        super().__init__(host.state, host.memory, host.server, host.options.patience)
        self._leads, self._forward = leads, forward

    async def begin(self, shard: Shard, ticket: int, worker: str, caller: Caller) -> Slot:
        if not self._leads():
            raise Refused(grpc.StatusCode.UNAVAILABLE, "another server leads: wait")
        return await super().begin(shard, ticket, worker, caller)

    def finish(self, shard: Shard, slot: Slot) -> None:
        super().finish(shard, slot)
        self._forward(encode(slot))


class ReplicatedHost(ShardHost):
    """A shard that gives a receipt when all copies hold the payload. `stable`: waits for that."""

    stable: Callable[[], Awaitable[None]]

    async def receipt(self, slot: Slot) -> bytes:
        await self.stable()
        return await super().receipt(slot)
