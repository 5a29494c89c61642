"""Memory that workers of this machine share: a member has one attachment."""

from psserver.service.limits.room import ShardMemory
from psserver.service.limits.watch import Caller
from psserver.service.shard.shared import SharedShard
from psserver.service.transport.shared_memory import SLOTS


class Attachments:
    """`patience`: seconds that a member's older stream may take to let go. The loop's thread owns it."""

    def __init__(self, state: SharedShard, memory: ShardMemory, server: int, patience: float) -> None:
        self._state, self._memory = state, memory
        self._server, self._patience = server, patience
        # On which stream each member has attached memory.
        self._attached: dict[str, Caller] = {}

    async def begin(self, worker: str, caller: Caller) -> str | None:
        """Make room for what `worker` attaches on its stream `caller`; or why there is none.

        Its older stream is cut, and given time to let go."""
        before = self._attached.get(worker)
        if before is not None:
            before.cancel()
            gone = await self._state.wait_for(
                lambda: worker not in self._attached, self._patience, self._server
            )
            if not gone:
                return f"{worker} shares memory on another stream already"
        refusal = self._memory.take_slots(worker, SLOTS)
        if refusal is None:
            self._attached[worker] = caller
        return refusal

    def end(self, worker: str, caller: Caller) -> None:
        """The stream has let go of what was attached on it."""
        if self._attached.get(worker) is caller:
            del self._attached[worker]
            self._memory.give_slots(worker)
            self._state.admission.freed()
            self._state.changes.notify()
