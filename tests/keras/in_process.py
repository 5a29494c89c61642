"""Servers of this very process, whose optimizer is the job's: cheaper than a process for each test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psserver.settings import Options
from tests.service.serving import PATIENCE, Served


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
            started.insert(0, Served(plan, patience=PATIENCE, lease=0.5))
            addresses[index] = started[0].address
        yield ",".join(addresses)
    finally:
        for served in started:
            if served.code is None:
                served.interrupt()
        for served in started:
            served.ended()
