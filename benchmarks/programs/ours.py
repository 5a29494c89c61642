"""A worker of ours, steered by the benchmark: pull, push, commit, in bursts. Its gradient lies ready.

Commands: prepare {load, hosts, connect, shapes}, measure {load, steps}, release {load}.
"""

import os
import time
from typing import Any

import numpy as np

import psworker
from benchmarks.programs.json_commands import serve
from pswire.command.process import keep_large_blocks
from psworker.engine import Grant
from psworker.errors import Voided
from psworker.link import Link

Flats = list[np.ndarray]  # one payload per server, float32 or in the wire dtype


class Running:
    """A prepared load."""

    def __init__(self, session: Link) -> None:
        self.session = session
        gradient = [np.full(shard.elements, 1e-6, np.float32) for shard in session.plan.shards]
        self._ready = {np.dtype(np.float32): gradient}

    def gradient(self, weights: Flats) -> Flats:
        for part in weights:
            # What the peer's step does, too: it needs them all, and reads one of each.
            assert np.isfinite(part[0])
        # As a graph gives it: in the dtype in which the weights came.
        dtype = weights[0].dtype
        if dtype not in self._ready:
            wide = self._ready[np.dtype(np.float32)]
            self._ready[dtype] = [values.astype(dtype) for values in wide]
        return self._ready[dtype]


loads: dict[str, Running] = {}


def prepare(load: str, hosts: str, connect: dict[str, Any], shapes: list[list[int]]) -> None:
    variables = {f"v{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    loads[load] = Running(psworker.connect(hosts, variables, **connect)._link)


def measure(load: str, steps: int) -> dict[str, Any]:
    """As a worker's loop does it, from one version that is here to the version `steps` commits later: every part
    of a step, each exactly `steps` times. The last grant is given back, for a burst may be long in coming.

    `begin` and `end` in seconds of the machine's monotonic clock.
    """
    running = loads[load]
    session = running.session
    grant, begin, committed = fresh(session), 0.0, 0
    while True:
        try:
            with session.view_flat(grant, narrow=True) as weights:
                here = time.monotonic()
                begin = begin or here
                if committed == steps:
                    break
                # Fetches the next version if the session is one that does.
                session.prefetch(grant)
                flats = running.gradient(weights)
            session.contribute(grant, flats, samples=1, ready=True)
            committed += 1
        except Voided as reason:
            session.abandon(grant, str(reason))
        grant = fresh(session)
    session.abandon(grant, "the burst is over")
    session.dispositions()
    return {"begin": begin, "end": here, "steps": steps}


def fresh(session: Link) -> Grant:
    grant = session.ready()
    if grant is None:
        raise RuntimeError(f"the job is over in the middle of a measurement: {session.stop}")
    return grant


def release(load: str) -> None:
    """Comes to all workers of a job at once: each waits for the others."""
    session = loads.pop(load).session
    session.done()
    session.close()


if __name__ == "__main__":
    # As ps-worker does.
    keep_large_blocks()
    serve({"prepare": prepare, "measure": measure, "release": release})
    # Sessions that were not released have servers that are gone: nobody can be sent a Leave.
    os._exit(0)
