"""A worker of ours, steered by the benchmark: pull, gradient, push, commit, in bursts.

Commands: prepare {load, hosts, connect, shapes | model, think}, measure {load,
steps}, release {load}. Without `hosts` the load is computed alone, with nobody to
talk to: what the step would cost without communication.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import psworker
from benchmarks.programs.json_commands import serve
from pswire.command.process import keep_large_blocks
from pswire.model.plan import Plan, make_plan
from psworker import Grant, Session, Voided
from psworker.data.payloads import Payload

if TYPE_CHECKING:
    from psworker.connecting import Variables

Flats = list[np.ndarray]  # one payload per server, float32 or in the wire dtype


class Computation(Protocol):
    """Flat weights to flat gradients. `variables`: as for psworker.connect."""

    @property
    def variables(self) -> "Variables": ...

    def attach(self, plan: Plan) -> None: ...

    def __call__(self, weights: Flats) -> Sequence[Payload]: ...


class Prepared:
    """No compute at all: the gradient lies ready. `think` seconds pass as if somebody else computed."""

    def __init__(self, shapes: list[list[int]], think: float) -> None:
        self.variables = {f"v{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
        self._think = think
        self._ready: dict[Any, Flats] = {}

    def attach(self, plan: Plan) -> None:
        gradient = [np.full(shard.elements, 1e-6, np.float32) for shard in plan.shards]
        self._ready = {np.dtype(np.float32): gradient}

    def __call__(self, weights: Flats) -> Sequence[Payload]:
        for part in weights:
            # What the peer's step does, too: it needs them all, and reads one of each.
            assert np.isfinite(part[0])
        if self._think:
            time.sleep(self._think)
        # As a graph gives it: in the dtype in which the weights came.
        dtype = weights[0].dtype
        if dtype not in self._ready:
            wide = self._ready[np.dtype(np.float32)]
            self._ready[dtype] = [values.astype(dtype) for values in wide]
        return self._ready[dtype]


@cache
def trained(model: str) -> Computation:
    """Real training steps. Loads TensorFlow, so this is the only mention of it here."""
    from benchmarks.programs.trained import Trained

    return Trained(model)


@dataclass
class Running:
    """A prepared load; without a session, one that is computed alone from `weights`."""

    computation: Computation
    session: Session | None
    weights: Flats


loads: dict[str, Running] = {}


def prepare(
    load: str,
    hosts: str = "",
    connect: dict[str, Any] | None = None,
    shapes: list[list[int]] | None = None,
    model: str = "",
    think: float = 0.0,
) -> None:
    computation = trained(model) if model else Prepared(shapes or [], think)
    if not hosts:
        pairs: Any = computation.variables
        plan = make_plan([spec for spec, _ in pairs], 1)
        computation.attach(plan)
        loads[load] = Running(computation, None, plan.scatter([value for _, value in pairs]))
        return
    session = psworker.connect(hosts, computation.variables, **(connect or {}))
    computation.attach(session.plan)
    loads[load] = Running(computation, session, [])


def measure(load: str, steps: int) -> dict[str, Any]:
    """`begin` and `end` in seconds of the machine's monotonic clock."""
    running = loads[load]
    if running.session is not None:
        return burst(running.session, running.computation, steps)
    begin = time.monotonic()
    for _ in range(steps):
        running.computation(running.weights)
    return {"begin": begin, "end": time.monotonic(), "steps": steps}


def burst(session: Session, computation: Computation, steps: int) -> dict[str, Any]:
    """As a worker's loop does it, from one version that is here to the version `steps` commits later: every part
    of a step, each exactly `steps` times. The last grant is given back, for a burst may be long in coming."""
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
                flats = computation(weights)
            session.contribute(grant, flats, samples=1, ready=True)
            committed += 1
        except Voided as reason:
            session.abandon(grant, str(reason))
        grant = fresh(session)
    session.abandon(grant, "the burst is over")
    session.dispositions()
    return {"begin": begin, "end": here, "steps": steps}


def fresh(session: Session) -> Grant:
    grant = session.ready()
    if grant is None:
        raise RuntimeError(f"the job is over in the middle of a measurement: {session.stop}")
    return grant


def release(load: str) -> None:
    """Comes to all workers of a job at once: each waits for the others."""
    running = loads.pop(load)
    if running.session is not None:
        running.session.done()
        running.session.close()


if __name__ == "__main__":
    # As ps-worker does.
    keep_large_blocks()
    serve({"prepare": prepare, "measure": measure, "release": release})
    # Sessions that were not released have servers that are gone: nobody can be sent a Leave.
    os._exit(0)
