"""Pushes for which a server has no room yet: they come again, for as long as others take."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psworker.engine import Grant
from psworker.link import Link
from tests.links import connect_link
from tests.service.serving import ONES, PATIENCE, granted, serving, wait_until

WORKERS = 6
PAYLOAD = {"dense/bias": np.ones(4)}


@pytest.mark.parametrize("transport", ["socket", "grpc"])
def test_they_outlast_the_patience_with_a_server(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    """The one whose turn is the first pushes last. Four payloads have room."""
    caplog.set_level("INFO", "ps-worker")

    def told_to_come_again() -> int:
        said = [record.getMessage() for record in caplog.records]
        return sum("push again in a moment" in each for each in said)

    def works(session: Link, grant: Grant) -> None:
        session.push(grant, PAYLOAD)
        session.commit(grant, samples=1)

    with (
        serving(workers=WORKERS, policy="sync", patience=0.05) as cluster,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        sessions = [
            connect_link(
                cluster.hosts, ONES, name=f"w{n}", task_index=n, transport=transport, server_timeout=5.0
            )
            for n in range(WORKERS)
        ]
        asked = [pool.submit(granted, session) for session in sessions]
        first, *rest = zip(sessions, [each.result(PATIENCE) for each in asked], strict=True)
        others = [pool.submit(works, *each) for each in rest]
        wait_until(told_to_come_again, "a push that is told to come again")
        works(*first)
        for each in others:
            each.result(PATIENCE)
        for session in sessions:
            session.close()
