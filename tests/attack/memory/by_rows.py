"""What one message can cost: fields that grow when they are parsed, rows that nobody has, ids that were chosen.

Beside each an honest worker of another process steps (`honest`), and its longest step is told.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import grpc
import numpy as np

from pswire.model.tables import mix, unmix
from psworker.errors import SessionError
from psworker.link import Link
from tests.attack.memory.honest import connected
from tests.attack.memory.target import Target

IDS, CHOSEN = 400_000, 150_000


@contextmanager
def beside(target: Target, *, tables: bool, told: dict[str, float]) -> Iterator[None]:
    """Have the honest worker step meanwhile, and put what it tells into `told`."""
    command = [
        sys.executable,
        "-m",
        "tests.attack.memory.honest",
        target.address,
        "tables" if tables else "none",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n"
            yield
            process.stdin.close()
            told.update(json.loads(process.stdout.readline()))
        finally:
            process.kill()


def attacked(attack: Callable[[Target], str], target: Target, *, tables: bool) -> str:
    found: dict[str, float] = {}
    with beside(target, tables=tables, told=found):
        told = attack(target)
    return f"{told}; the longest of {found['steps']} honest steps took {found['longest']:.2f} s"


def _joins(target: Target) -> str:
    join = target.cluster.channels[0].unary_unary("/pswire.v1.Coordinator/Join", None, None)
    # A repeated field of messages, two bytes each.
    data, answers = b"\x1a\x00" * (2 * 2**20), set()
    for _ in range(8):
        try:
            join(data, timeout=120)
        except grpc.RpcError as error:
            answers.add(error.code().name)
    return f"8 of {len(data) / 2**20:.0f} MiB: {', '.join(sorted(answers))}"


def _step(session: Link, ids: np.ndarray) -> None:
    grant = session.ready()
    assert grant is not None
    try:
        session.push(grant, {}, rows={"rows": (ids, np.ones((ids.size, 64), np.float32))})
    except SessionError:
        session.abandon(grant, "no room")
        raise
    session.commit(grant, samples=1)


def _reads(target: Target) -> str:
    taken = 0
    with connected(target.address, tables=True) as session:
        for turn in range(4):
            grant = session.ready()
            assert grant is not None
            with suppress(SessionError):
                ids = np.arange(IDS, dtype=np.int64) + (turn + 1) * IDS
                taken += session.pull_rows(grant, {"rows": np.unique(mix(ids))})["rows"].shape[0]
            session.abandon(grant, "read")
    return f"{taken} unknown rows were read in 4 turns of {IDS}"


def _updates(target: Target) -> str:
    made = 0
    with connected(target.address, tables=True) as session:
        for turn in range(12):
            try:
                _step(session, np.arange(IDS, dtype=np.int64) + (turn + 1) * IDS)
            except SessionError:
                break
            made += IDS
    return f"{made} rows were made, {IDS} at a time"


def _chosen(target: Target) -> str:
    # One bucket, and one place in it where places are bits of keys.
    ids = unmix((np.uint64(77) << np.uint64(52)) + np.arange(CHOSEN, dtype=np.uint64))
    with connected(target.address, tables=True) as session:
        _step(session, ids)
        # Waits until it is made.
        session.lookup("rows", ids[:1])
    return f"{CHOSEN} ids in one update"


joins_of_empty_fields = partial(attacked, _joins, tables=False)
reads_of_unknown_rows = partial(attacked, _reads, tables=True)
updates_of_unknown_rows = partial(attacked, _updates, tables=True)
chosen_ids = partial(attacked, _chosen, tables=True)
