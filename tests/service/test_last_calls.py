"""The end of a server: calls that are under way come to theirs before the loop does."""

import asyncio
from typing import Any

from psserver.service.life.job_loop import end_tasks


def test_a_call_that_tells_its_peer_of_its_end_is_not_cancelled_again() -> None:
    """As gRPC's own tasks do, which are known by their name."""
    ends: list[str] = []

    async def _handle_exceptions() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                for _ in range(5):
                    await asyncio.sleep(0)
                ends.append("told")
            except asyncio.CancelledError:
                ends.append("cancelled again")
                raise

    async def other() -> None:
        await asyncio.Event().wait()

    async def server() -> None:
        _handle_exceptions.__qualname__ = "_handle_exceptions"
        call: Any = _handle_exceptions()
        tasks = [asyncio.create_task(call), asyncio.create_task(other())]
        await asyncio.sleep(0)
        # gRPC's stop.
        tasks[0].cancel()
        await asyncio.sleep(0)
        await end_tasks()
        assert all(task.done() for task in tasks)

    asyncio.run(server())
    assert ends == ["told"]
