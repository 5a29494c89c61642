"""A class on two cores: one link is played once, what waits is bounded, equal plays are remembered."""

import asyncio
import json
import signal
from contextlib import suppress

import psutil
import pytest

from pslab.dashboard.playground import pool as pool_module
from pslab.dashboard.playground.play import Budget
from pslab.dashboard.playground.pool import Busy, PlayPool
from pslab.dashboard.playground.settings import PlaygroundError
from tests.patience import PATIENCE


def asked(seed: int, **more: object) -> str:
    settings = {
        "cluster.workers": 8,
        "policy.name": "async",
        "simulation.compute": "exponential(0.5)",
        "simulation.seconds": 10.0,
        "run.seed": seed,
    }
    return json.dumps({"settings": {**settings, **more}})


def test_32_viewers_of_one_link_play_it_once() -> None:
    async def viewers() -> PlayPool:
        pool = PlayPool(1)
        try:
            answers = await asyncio.gather(*(pool.play(asked(1)) for _ in range(32)))
            assert len(set(answers)) == 1 and json.loads(answers[0])["updates"]
            assert await pool.play(asked(1)) == answers[0]
        finally:
            pool.close()
        return pool

    assert asyncio.run(viewers()).simulated == 1


def test_more_than_may_wait_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslab.dashboard.playground.pool.QUEUE_LIMIT", 4)

    async def crowd() -> None:
        pool = PlayPool(1)
        try:
            answers = await asyncio.gather(
                *(pool.play(asked(seed)) for seed in range(6)), return_exceptions=True
            )
            assert [isinstance(answer, Busy) for answer in answers] == [False] * 4 + [True] * 2
            assert "try again" in str(answers[-1])
            assert json.loads(await pool.play(asked(9)))["updates"], "later there is room again"
        finally:
            pool.close()

    asyncio.run(crowd())


def test_what_is_no_play_reaches_no_process() -> None:
    async def wrong() -> None:
        pool = PlayPool(1)
        with pytest.raises(PlaygroundError):
            await pool.play("{")
        assert pool.simulated == 0

    asyncio.run(wrong())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslab.dashboard.playground.pool.CACHE_LIMIT", 50_000)

    async def many() -> None:
        pool = PlayPool(1)
        try:
            for seed in (1, 2, 3, 4, 1):
                await pool.play(asked(seed))
            assert pool.simulated == 5, "the oldest was forgotten"
        finally:
            pool.close()

    asyncio.run(many())


def spawned() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        # One that has ended meanwhile is none.
        with suppress(psutil.Error):
            found += [process] if "spawn_main" in " ".join(process.cmdline()) else []
    return found


def test_what_is_played_and_what_waits_keeps_no_process_at_the_end() -> None:
    """These would play for ever."""
    endless = {"simulation.seconds": 1e9, "simulation.compute": "constant(1)"}

    before = {process.pid for process in spawned()}

    async def play() -> list[psutil.Process]:
        pool = PlayPool(1, Budget(entries=10**9, seconds=1e9))
        plays = [asyncio.create_task(pool.play(asked(seed, **endless))) for seed in range(4)]
        async with asyncio.timeout(PATIENCE):
            while not (playing := [p for p in spawned() if p.pid not in before]):
                await asyncio.sleep(0.01)
        pool.close()
        for each in plays:
            each.cancel()
        await asyncio.gather(*plays, return_exceptions=True)
        return playing

    _, alive = psutil.wait_procs(asyncio.run(play()), timeout=PATIENCE)
    assert not alive


def test_one_step_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is looked at between events."""

    def endless(text: str, budget: Budget) -> str:
        while True:
            pass

    monkeypatch.setattr(pool_module, "played", endless)
    before = signal.getsignal(signal.SIGPROF)
    try:
        with pytest.raises(PlaygroundError, match="takes too long"):
            pool_module.played_in_time("", Budget(seconds=0.05))
    finally:
        signal.signal(signal.SIGPROF, before)


def test_a_simulation_that_needs_too_much_memory_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "played", lambda text, budget: str(bytearray(2**60)))
    before = signal.getsignal(signal.SIGPROF)
    try:
        assert "needs more than 1024 MiB" in json.loads(pool_module.played_in_time("", Budget()))["error"]
    finally:
        signal.signal(signal.SIGPROF, before)
