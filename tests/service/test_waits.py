"""Waiting for what the loop's thread owns: in time, and as long as was said."""

import asyncio

from psserver.service.net.loop import Changes
from tests.patience import PATIENCE


def test_one_whose_room_another_took_waits_on() -> None:
    """Both are woken for one place; the second finds it taken, has time left, and gets the next."""

    async def play() -> list[tuple[str, bool]]:
        changes, room, found = Changes(asyncio.get_running_loop), [0], list[tuple[str, bool]]()

        async def enter(name: str) -> None:
            met = await changes.wait_for(lambda: room[0] > 0, PATIENCE)
            room[0] -= met
            found.append((name, met))

        tasks = [asyncio.ensure_future(enter(name)) for name in ("first", "second")]
        await asyncio.sleep(0)
        room[0] = 1
        changes.notify()
        for _ in range(5):
            await asyncio.sleep(0)
        assert found == [("first", True)] and changes.waiting
        room[0] = 1
        changes.notify()
        await asyncio.gather(*tasks)
        assert not changes.waiting
        return found

    assert asyncio.run(play()) == [("first", True), ("second", True)]


def test_nobody_waits_for_longer_than_was_said() -> None:
    async def play() -> bool:
        changes = Changes(asyncio.get_running_loop)
        waiting = asyncio.ensure_future(changes.wait_for(lambda: False, 0.05))
        while not waiting.done():
            # Whatever changes meanwhile.
            changes.notify()
            await asyncio.sleep(0.001)
        assert not changes.waiting
        return await waiting

    assert asyncio.run(play()) is False
