"""Payloads: a primary forwards each before it gives the receipt, and a follower stages it."""

import json
import struct
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from psserver.receipts import Claim
from psserver.service.errors import unavailable
from psserver.service.guard.calls import CallPeer
from psserver.service.replicas.bodies import Body
from psserver.service.store.admission import Claims, PushSlots
from psserver.service.store.host import ShardHost
from psserver.shard import Shard
from psserver.shard.staging import Slot
from pswire.model.rows import Rows

_LENGTH = struct.Struct("<I")
# Numbers begin at multiples of so many bytes of an item, whose first byte says its kind.
_ALIGNED = 64


def encode(slot: Slot) -> list[Body]:
    """Return the parts of a complete payload, with what the shard found out about it, and behind it rows of tables."""
    about = {
        "ticket": slot.ticket,
        "squares": slot.squares,
        "rows": [keys.size for keys, _ in slot.rows],
    }
    header = json.dumps(about).encode()
    header += b" " * (-(1 + _LENGTH.size + len(header)) % _ALIGNED)
    rows = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for each in slot.rows for array in each
    )
    return [_LENGTH.pack(len(header)), header, slot.values.data.cast("B"), *rows]


def stage(shard: Shard, body: memoryview) -> None:
    """Stage a payload, if its ticket still takes one."""
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + length
    about = json.loads(bytes(body[_LENGTH.size : start]))
    if shard.refusal(about["ticket"]) is not None:
        return
    values = np.frombuffer(body, np.float32, shard.layout.elements, start)
    slot = shard.staging.begin(about["ticket"])
    slot.values[...] = values
    if about["rows"]:
        slot.rows = _rows(shard, about["rows"], body[start + values.nbytes :])
    slot.squares = about["squares"]
    shard.staging.finish(slot)


def _rows(shard: Shard, counts: Sequence[int], data: memoryview) -> Rows:
    """Return so many rows of each table, in arrays of their own."""
    found = []
    for count, table in zip(counts, shard.tables.tables, strict=True):
        keys, values = np.empty(count, np.uint64), np.empty((count, table.spec.dim), np.float32)
        for array in (keys, values):
            array.reshape(-1).view(np.uint8)[...] = np.frombuffer(data, np.uint8, array.nbytes)
            data = data[array.nbytes :]
        found.append((keys, values))
    return found


class ForwardedPushes(PushSlots):
    """Pushes to a primary. `leads`: whether this server is it; `forward`: takes the parts of each complete payload."""

    def __init__(
        self, host: ShardHost, leads: Callable[[], bool], forward: Callable[[list[Body]], None]
    ) -> None:
        super().__init__(host.state, host.memory, host.server, host.options.patience)
        self._leads, self._forward = leads, forward

    async def begin(self, shard: Shard, ticket: int, worker: str, caller: CallPeer) -> Slot:
        if not self._leads():
            raise unavailable("another server leads: wait")
        return await super().begin(shard, ticket, worker, caller)

    def finish(self, shard: Shard, slot: Slot) -> None:
        super().finish(shard, slot)
        self._forward(encode(slot))


class ServedClaims(Claims):
    """Admission where the part is served. `serves`: whether it is here."""

    serves: Callable[[], bool]

    async def admit(self, claim: Claim, plan: str, after: int, caller: CallPeer) -> Shard:
        if not self.serves():
            # Another one is found by asking any server.
            raise unavailable("another server serves this part: wait")
        return await super().admit(claim, plan, after, caller)


class ReplicatedHost(ShardHost):
    """A shard that gives a receipt when all copies hold the payload. `stable`: waits for that."""

    stable: Callable[[], Awaitable[None]]

    def serve(self, serves: Callable[[], bool], forward: Callable[[list[Body]], None]) -> None:
        """Serve workers while `serves` says so. `forward`: takes the parts of each complete payload."""
        self.pushes = ForwardedPushes(self, serves, forward)
        self.claims = claims = ServedClaims(self.state, self.watch, self.server, self.options.patience)
        claims.serves = serves

    async def receipt(self, slot: Slot) -> bytes:
        await self.stable()
        return await super().receipt(slot)
