"""Verbs for tests of shared memory: sessions that train, and segments that are counted."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pswire.model.plan import VariableSpec
from psworker.data.payloads import Pieces
from psworker.engine import Grant
from psworker.link import Link
from tests.links import connect_link
from tests.probes import SessionProbe
from tests.service.serving import PATIENCE, granted

VARIABLES = (
    VariableSpec("kernel", (50, 8)),
    VariableSpec("bias", (8,)),
    VariableSpec("mean", (5,), kind="state"),
)
Flats = list[np.ndarray]


def connect(
    hosts: str,
    transport: str = "shared-memory",
    name: str | None = None,
    wire_dtype: str = "float32",
    server_timeout: float = PATIENCE,
) -> Link:
    ones = [(spec, np.ones(spec.shape, np.float32)) for spec in VARIABLES]
    return connect_link(
        hosts, ones, name=name, transport=transport, wire_dtype=wire_dtype, server_timeout=server_timeout
    )


def gradient(session: Link, number: int) -> Flats:
    """The same for the same worker and number, whatever the transport."""
    generator = np.random.default_rng([session.info.rank, number])
    return session.plan.scatter([generator.normal(size=s.shape).astype(np.float32) for s in VARIABLES])


def proof(session: Link) -> dict[str, Any]:
    """Of its membership, for a message made by hand."""
    member = SessionProbe(session).joined()
    return {"incarnation": member.incarnation, "membership_token": member.membership_token}


def begun(*sessions: Link) -> list[Grant]:
    """The first grants of all, which wait for each other."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(granted, sessions, timeout=PATIENCE))


def step(session: Link, number: int, how: str = "contribute", grant: Grant | None = None) -> Flats:
    """A unit of work; the version that it started from. The gradient depends on what was read."""
    grant = grant or granted(session)
    flats = session.pull_flat(grant)
    payload: list[Any] = [
        g + np.float32(0.01) * w for g, w in zip(gradient(session, number), flats, strict=True)
    ]
    if how == "slots":
        for slot, values in zip(slots := session.slot_flat(grant), payload, strict=True):
            slot[...] = values
        payload = slots
    if how == "parts":
        # Of three sizes, one of them nothing.
        cuts = [np.split(values, [0, values.size // 3]) for values in payload]
        payload = [Pieces([partial(np.asarray, each) for each in cut], sum(map(len, cut))) for cut in cuts]
    if how == "apart":
        session.push_flat(grant, payload)
        session.commit(grant, samples=1, batch=number)
    else:
        session.contribute(grant, payload, samples=1, batch=number)
    return flats


def together(hosts: str, transports: Sequence[str], steps: int, how: str = "contribute") -> list[bytes]:
    """One worker per transport, all at once; the bytes of the final version, by server."""
    finals: list[list[bytes]] = []
    errors: list[BaseException] = []

    def work(index: int, transport: str) -> None:
        try:
            with connect(hosts, transport, f"w{index}") as session:
                for number in range(steps):
                    step(session, number, how)
                assert set(session.transport) == {transport}
                session.done()
                finals.append([values.tobytes() for values in session.pull_final()])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(transports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert len(finals) == len(transports), "a worker is still waiting"
    assert all(final == finals[0] for final in finals)
    return finals[0]


def segments_of(pid: int | str) -> set[int]:
    """The shared segments that a process has open or mapped, by inode."""
    found = set()
    folder = Path(f"/proc/{pid}/fd")
    for entry in folder.iterdir():
        try:
            if os.readlink(entry).startswith("/memfd:pswire"):
                found.add(os.stat(entry).st_ino)
        except FileNotFoundError:
            # Closed since it was listed.
            continue
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
        if "/memfd:pswire" in line:
            found.add(int(line.split()[4]))
    return found
