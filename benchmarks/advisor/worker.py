"""A real worker whose steps take the time of its shape: it computes the gradient, and waits for the rest of it.

Takes commands as JSON lines. `run`: join a job, train until it is over.
"""

import time
from typing import Any

import psworker
from benchmarks.advisor.problem import Clusters
from benchmarks.programs.json_commands import serve
from pswire.config.distributions import Draw, parse, stream
from psworker import JobOver, Voided

# Contributions between two evaluations, as in the advisor's plays.
CONTRIBUTIONS = 10


def run(
    hosts: str,
    transport: str,
    index: int,
    seed: int,
    step: str,
    problem: dict[str, Any],
    epochs: int,
    goal: float,
    every: int,
    limit: float,
) -> dict[str, Any]:
    """Train as worker `index`. `step`: a distribution of seconds.

    `goal`: an accuracy that ends the job, 0 for none; `every`: versions between two evaluations by worker 0; `limit`:
    seconds after which worker 0 ends the job.
    """
    learnt = Clusters(**problem)
    draw = parse(step).draws(stream(seed, index, "compute"))
    try:
        with psworker.connect(hosts, learnt.initial(), task_index=index, transport=transport) as session:
            ends = _train(session, learnt, draw, seed, epochs, goal, every, limit)
            session.done(ends)
    except JobOver:
        # It was started again when the others were at the end.
        return {"ends": ""}
    return {"ends": ends}


def _train(
    session: psworker.Session,
    problem: Clusters,
    draw: Draw,
    seed: int,
    epochs: int,
    goal: float,
    every: int,
    limit: float,
) -> str:
    """Return why the job is to end; empty where it ended by itself."""
    first, number, evaluated, began = session.next_batch, -1, 0, 0.0
    for epoch in range(epochs):
        for batch in problem.batches(session.worker_index, session.worker_count, seed, epoch):
            number += 1
            while number >= first:
                grant = session.ready()
                if grant is None:
                    return ""
                began = began or time.monotonic()
                until = time.monotonic() + draw()
                try:
                    weights = session.pull(grant)
                    if goal and session.worker_index == 0 and grant.version >= evaluated + every:
                        evaluated = grant.version
                        metrics = problem.evaluate(weights)
                        session.report(metrics, grant.version)
                        late = time.monotonic() - began > limit
                        if late or metrics["accuracy"] >= goal:
                            session.abandon(grant, "the job ends")
                            return f"{limit:g} s are over" if late else f"accuracy {metrics['accuracy']:.3f}"
                    found = problem.gradient(weights, batch)
                    time.sleep(max(0.0, until - time.monotonic()))
                    session.push(grant, found.values)
                    session.commit(grant, samples=found.samples, loss=found.loss, batch=number)
                    break
                except Voided:
                    # The same batch again, under another ticket.
                    session.abandon(grant, "cancelled")
    return ""


if __name__ == "__main__":
    serve({"run": run})
