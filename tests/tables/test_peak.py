"""Rows that nobody has ask a whole server for no more memory than its limit, and chosen ids lie as others do."""

import tracemalloc
from contextlib import suppress

import numpy as np

from pswire.model.plan import VariableSpec
from pswire.model.tables import TableSpec
from psworker.errors import SessionError
from psworker.link import Link
from tests.links import connect_link
from tests.promises import promise
from tests.service.serving import Cluster, granted, serving

ROWS = TableSpec("rows", 64, "normal", (0.0, 0.05))
VARIABLES = [(VariableSpec("bias", (2,)), np.zeros(2, np.float32))]
LIMIT, MANY, CHOSEN = 128 << 20, 30_000, 20_000
# What the worker takes, which is in this process too.
OWN = 40 << 20


def connected(cluster: Cluster) -> Link:
    return connect_link(cluster.hosts, VARIABLES, tables=[ROWS])


def step(session: Link, ids: np.ndarray) -> None:
    grant = granted(session)
    try:
        session.push(grant, {}, rows={"rows": (ids, np.ones((ids.size, 64), np.float32))})
    except SessionError:
        session.abandon(grant, "no room")
        raise
    session.commit(grant, samples=1)


@promise(
    "Updates and reads of rows that nobody has are refused before they take more memory than `--memory-limit`."
)
def test_updates_and_reads_of_unknown_rows_stay_below_the_limit() -> None:
    with serving(memory_limit=LIMIT) as cluster, connected(cluster) as session:
        tracemalloc.start()
        try:
            made = 0
            with suppress(SessionError):
                while made < 100 * MANY:
                    step(session, np.arange(made, made + MANY))
                    made += MANY
            for turn in range(3):
                with suppress(SessionError):
                    session.lookup("rows", np.arange(MANY) - (turn + 1) * MANY)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert 0 < made < 100 * MANY and peak < LIMIT + OWN, f"{made} rows, {peak / 2**20:.0f} MiB"
        # The job goes on.
        step(session, np.arange(8))
