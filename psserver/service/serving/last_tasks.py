"""The tasks that are left when a server has ended."""

import asyncio
from typing import Any

# Seconds that gRPC may take to let go of what has ended.
LAST_EVENTS = 0.05
# How long calls that are cancelled may take for their end.
LAST_WORDS = 0.5


async def end_tasks() -> None:
    """What still runs is cancelled, and comes to its end. Connections end in a turn of the loop of their own.

    Calls that gRPC has cancelled are given a moment: one that is cancelled again while it tells its peer so is
    reported by gRPC with a traceback.
    """
    calls = [task for task in asyncio.all_tasks() if _name(task) == "_handle_exceptions"]
    if calls:
        await asyncio.wait(calls, timeout=LAST_WORDS)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # gRPC has last events for this loop.
    await asyncio.sleep(LAST_EVENTS)


def _name(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", "")
