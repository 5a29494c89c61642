"""What a server has of the World: its loop, its threads, its disk, its connections."""

import asyncio
from collections.abc import Callable
from typing import Any

from psserver.checkpoint.disk import RealDisk
from psserver.service.pools import Outcome, Pool
from psserver.service.runtime import RunningLoop, Runtime
from pswire.addresses import Address
from tests.world.channels import LoopChannel
from tests.world.clockwork import Gone, Process
from tests.world.disk import Unsynced, WorldDisk
from tests.world.network import Listener, Network

# Turns in which a lost process must have ended.
MOST_TURNS = 2000
# Seconds that work beside the loop takes at most.
WORK = 0.005


class WorldLoop(RunningLoop):
    """The event loop of a process: it hands the baton back where a real one asks the system what has happened."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        # Seconds and turns since the process was lost.
        self._after, self._turns_after = 0.0, 0
        self._turns.select = self._select  # type: ignore[method-assign]
        self.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what a task or a callback has raised that nobody handles."""
        if self._process.alive:
            self._process.errors.append(context.get("exception") or RuntimeError(context["message"]))

    def time(self) -> float:
        return self._process.now() + self._after

    def _select(self, timeout: float | None = None) -> list[Any]:
        waiting, self._turns.waiting = self._turns.waiting, []
        for act in waiting:
            act()
        try:
            self._process.world.wait(lambda: self._ready, 0.0 if waiting else timeout)  # type: ignore[attr-defined]
        except Gone:
            self._end(timeout)
        return []

    def _end(self, timeout: float | None) -> None:
        """End what a lost process had under way, for Python's sake: nobody sees what that does."""
        self._turns_after += 1
        if self._turns_after > MOST_TURNS:
            raise Gone
        if self._turns_after % 50 == 1:
            for task in asyncio.all_tasks(self):
                task.cancel()
        for done in list(self._process.beside):
            done()
        self._after += timeout or 0.001

    def _write_to_self(self) -> None:
        """Do nothing: whoever has the baton sees what is ready."""


class WorldPool(Pool):
    """Threads whose work is done at a drawn time."""

    def __init__(self, process: Process, loop: Callable[[], RunningLoop]) -> None:
        self._process, self._loop = process, loop

    def begin(self) -> None:
        """Do nothing."""

    def _submit(self, work: Callable[[], Any], over: Callable[[Outcome[Any]], object]) -> None:
        process, loop = self._process, self._loop()

        def done() -> None:
            if done in process.beside and not loop.is_closed():
                process.beside.remove(done)
                loop.call_soon(lambda: over(Outcome.of(work)))

        process.beside.append(done)
        process.world.at(process.world.dice.uniform(0.0, WORK), done)

    def close(self, *, wait: bool = True) -> None:
        """Do nothing."""


class WorldRuntime(Runtime):
    """What one server has of the World."""

    def __init__(self, process: Process, network: Network, unsynced: Unsynced) -> None:
        self._process, self._network, self._unsynced = process, network, unsynced
        super().__init__()

    def start(self) -> None:
        """Do nothing."""

    def new_loop(self) -> RunningLoop:
        return WorldLoop(self._process)

    def pool(self, threads: int, name: str) -> Pool:
        return WorldPool(self._process, lambda: self.loop)

    def disk(self, mode: int = 0o600) -> RealDisk:
        return WorldDisk(self._unsynced, mode)

    def serve(self, options: Any, most: int) -> Any:
        return Listener(self._network, self._process, self.loop)

    def listen(self, server: Any, bind: Address, credentials: Any) -> int:
        self._network.listening[str(bind)] = server
        return bind.port

    def dial(self, address: Address, options: Any, credentials: Any) -> Any:
        return LoopChannel(self._network, self._process, address, self.loop)

    async def nobody_listens(self, address: Address) -> bool:
        return not self._network.reached(str(address))
