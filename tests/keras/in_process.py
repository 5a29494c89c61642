"""Servers of this very process, whose optimizer is the job's: cheaper than a process for each test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from psserver.options import Options
from tests.service.serving import PATIENCE, Served

Found = TypeVar("Found")


def in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """What each of so many workers comes to. Fails at once when one raises: the others would wait for it until the
    servers, which the test holds, have ended."""
    found: dict[int, Found] = {}
    # None from a worker that has trained, or why it could not.
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(index: int) -> None:
        try:
            found[index] = work(index)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    for index in range(count):
        threading.Thread(target=run, args=(index,), daemon=True).start()
    for _ in range(count):
        if (error := ended.get()) is not None:
            raise error
    return [found[index] for index in range(count)]


@contextmanager
def servers(
    count: int = 1, *, workers: int = 1, policy: str = "sync", out: Path | None = None
) -> Iterator[str]:
    """The addresses, as `hosts` takes them. The job has ended by itself when the block is left, or is ended."""
    addresses, started = ["127.0.0.1:0"] * count, []
    overrides = [f"cluster.workers={workers}", f"policy.name={policy}", "optimizer.name=from-job"]
    try:
        for index in reversed(range(count)):
            plan = Options(
                ps_hosts=",".join(addresses),
                task_index=index,
                overrides=overrides,
                out=out if index == 0 else None,
            )
            started.insert(0, Served(plan, patience=PATIENCE, read_limit=0.5))
            addresses[index] = started[0].address
        yield ",".join(addresses)
    finally:
        for served in started:
            if served.code is None:
                served.interrupt()
        for served in started:
            served.ended()
