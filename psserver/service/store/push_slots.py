"""Where payloads go: a push gets a staging slot as soon as memory admits it, in its turn. The first complete payload is
its ticket's."""

import time

import grpc

from psserver.service.errors import Refused, invalid
from psserver.service.guard.room import ShardMemory
from psserver.service.guard.watch import Caller
from psserver.service.store.shared import SharedShard
from psserver.shard import Shard
from psserver.shard.staging import Slot


class PushSlots:
    """`patience`: seconds that an earlier push of a ticket may take to end. The loop's thread owns it."""

    def __init__(self, state: SharedShard, memory: ShardMemory, server: int, patience: float) -> None:
        self._state, self._memory = state, memory
        self._server, self._patience = server, patience

    async def begin(self, shard: Shard, ticket: int, worker: str, caller: Caller) -> Slot:
        """A slot for the ticket's payload, as soon as memory admits it.

        A push of the ticket that is under way is cut: its worker has begun anew.
        """
        self._state.admission.supersede(ticket)
        if not self._may_enter(shard, ticket, worker):
            await self._enter(shard, ticket, worker)
        return self._place(shard, ticket, caller)

    def _may_enter(self, shard: Shard, ticket: int, worker: str) -> bool:
        """Raises Refused for a ticket that takes no payload, or none of this worker."""
        refusal = shard.refusal(ticket, worker)
        if refusal is not None:
            raise Refused(grpc.StatusCode.ABORTED, refusal)
        staging = shard.staging
        free = staging.incoming(ticket) is None and staging.admits(ticket)
        return free and self._memory.admits(ticket)

    async def _enter(self, shard: Shard, ticket: int, worker: str) -> None:
        deadline = time.monotonic() + self._patience
        turn = shard.staging.tickets[ticket].turn
        while not self._may_enter(shard, ticket, worker):
            before = shard.staging.incoming(ticket)
            if before is not None:
                before.cut()
                if time.monotonic() > deadline:
                    text = f"an earlier push of ticket {ticket} does not end"
                    raise Refused(grpc.StatusCode.UNAVAILABLE, text)
            if not await self._state.admission.wait(ticket, -1 if turn is None else turn):
                raise Refused(grpc.StatusCode.CANCELLED, "the worker pushes the ticket anew")
            self._state.check_going(self._server)
        # The next may come in, too.
        self._state.admission.freed()

    def _place(self, shard: Shard, ticket: int, caller: Caller) -> Slot:
        try:
            return shard.begin(ticket, caller.cancel)
        except MemoryError as error:
            message = f"server {self._server} has no memory for a payload of {shard.layout.nbytes} bytes"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message) from error

    def finish(self, shard: Shard, slot: Slot) -> None:
        """The payload is complete and finite. Raises Refused when the ticket is closed, or has another."""
        taken = shard.staging.finish(slot)
        self._ended(slot)
        if not taken:
            refusal = shard.refusal(slot.ticket)
            if refusal is not None:
                raise Refused(grpc.StatusCode.ABORTED, refusal)
            raise invalid(
                f"payload of ticket {slot.ticket}: another one was accepted before; expected the same again, "
                "a commit, or an abandon"
            )
        self._state.received += 1

    def give_up(self, shard: Shard, slot: Slot) -> None:
        shard.staging.give_up(slot)
        self._ended(slot)

    def _ended(self, slot: Slot) -> None:
        self._state.admission.changed(slot.ticket)
        self._state.admission.freed()
