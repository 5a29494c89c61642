"""A coroutine that goes on within the callback that ends its wait: `psserver.service.net.loop.Steps`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from psserver.service.net.loop import Steps, paused


class Run:
    """The steps of a coroutine, what it did, and how it ended."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.did: list[object] = []
        self.ends: list[BaseException | None] = []

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> Steps:
        steps = Steps(self.loop, coroutine, self.ends.append)
        steps.resume()
        return steps


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_paused_coroutine_goes_on_before_resume_returns() -> None:
    async def main() -> None:
        run = Run()

        async def work() -> None:
            run.did.append(await paused())
            run.did.append(await paused())

        steps = run.begin(work())
        steps.resume("one")
        assert run.did == ["one"] and run.ends == []
        steps.resume("two")
        assert run.did == ["one", "two"] and run.ends == [None]
        steps.resume("late")
        assert run.did == ["one", "two"] and run.ends == [None]

    asyncio.run(main())


def test_it_awaits_futures_as_a_task_does() -> None:
    async def main() -> None:
        run, given = Run(), asyncio.get_running_loop().create_future()

        async def work() -> None:
            run.did.append(await given)
            run.did.append(await paused())
            raise ValueError("bad")

        steps = run.begin(work())
        given.set_result("given")
        await turns()
        assert run.did == ["given"]
        steps.resume("resumed")
        (error,) = run.ends
        assert run.did == ["given", "resumed"] and isinstance(error, ValueError)

    asyncio.run(main())


@pytest.mark.parametrize("waits", ["unstarted", "paused", "future", "done future"])
def test_a_cancellation_is_raised_where_it_waits(waits: str) -> None:
    async def main() -> None:
        run, future = Run(), asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await (paused() if waits == "paused" else future)
                run.did.append("went on")
            except asyncio.CancelledError:
                run.did.append("cancelled")
                raise

        if waits == "unstarted":
            steps = Steps(run.loop, work(), run.ends.append)
        else:
            steps = run.begin(work())
        steps.cancel()
        steps.cancel()
        if waits == "done future":
            future.set_result(None)
        assert run.ends == []
        await turns()
        (error,) = run.ends
        assert isinstance(error, asyncio.CancelledError)
        assert run.did == ([] if waits == "unstarted" else ["cancelled"])
        assert future.cancelled() == (waits == "future")

    asyncio.run(main())


def test_a_coroutine_may_cancel_itself_and_clean_up_first() -> None:
    async def main() -> None:
        run, cleaned = Run(), asyncio.get_running_loop().create_future()
        started: list[Steps] = []

        async def work() -> None:
            await paused()
            started[0].cancel()
            try:
                await paused()
            finally:
                run.did.append(await cleaned)

        started.append(run.begin(work()))
        started[0].resume()
        await turns()
        assert run.did == run.ends == []
        cleaned.set_result("clean")
        await turns()
        (error,) = run.ends
        assert run.did == ["clean"] and isinstance(error, asyncio.CancelledError)

    asyncio.run(main())
