"""A worker without TensorFlow, which a test can hold at any moment of a step.

    python -m tests.cluster.numpy_worker --ps-hosts H:P,... [--batches N | --until FILE] [--hold MOMENT@BATCH]

It minimises |w - target|^2 / 2 with `psworker.loop.train`, the loop of the real worker. At MOMENT of batch
BATCH it prints {"event": "held"} and stands still until a line comes in on standard input. Before a step of `--gate` it
waits for a file: so that a run does not end before somebody has come to kill a server. As the script of a
`ps-lab run` it is told in its environment where the servers are.
"""

import argparse
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pswire.transport import frames
from psworker import (
    JobOver,
    JobStopped,
    Refused,
    SessionError,
    Unreachable,
    Untrusted,
    WorkUnits,
    loop,
)
from psworker.errors import Diverged
from psworker.link import Link
from psworker.loop import TicketLoop
from psworker.work import Unit
from tests.links import connect_link
from tests.probes import SessionProbe

# For the file of a gate, in seconds.
LOOK_EVERY = 0.02
MOMENTS = ("initialising", "pulling", "computing", "pushing", "pushed")
CODES = {JobOver: 0, JobStopped: 3, Unreachable: 3, Refused: 5, Diverged: 8, Untrusted: 10}


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


@dataclass
class Hold:
    """`reach(moment)` stands still once, at the wanted moment of the wanted batch."""

    moment: str
    batch: int
    now: int = -1  # the batch under way; -1 before the first version came in

    def reach(self, moment: str) -> None:
        if (moment, self.now) == (self.moment, self.batch):
            self.moment = ""
            say("held", moment=moment, batch=self.now)
            sys.stdin.readline()

    def install(self, session: Link) -> None:
        """Put the hold where no parameter reaches: half-way through a payload, and between two messages."""
        step, chunks, parsed = TicketLoop.step, frames.chunks, frames.parsed
        attempt, dealt = TicketLoop.attempt, session.work is not None

        def numbered_step(tickets: TicketLoop, batches: Any) -> bool:
            self.now = batches.first if self.now >= 0 else self.now
            return step(tickets, batches)

        def numbered_attempt(*args: Any) -> bool | None:
            # Of dealt batches: the how manieth of this worker.
            self.now += dealt
            return attempt(*args)

        def half_pushed(payload: Any) -> Iterator[tuple[int, memoryview]]:
            size = max(4, payload.nbytes // 8 * 4)
            for number, chunk in enumerate(chunks(payload, size)):
                if number == 1:
                    self.reach("initialising" if self.now < 0 else "pushing")
                yield chunk

        def half_pulled(*args: Any) -> Any:
            found, chunk = parsed(*args)
            if chunk is not None:
                self.now = max(self.now, 0) if not dealt else self.now
                self.reach("pulling")
            return found, chunk

        mock.patch.object(TicketLoop, "step", numbered_step).start()
        mock.patch.object(TicketLoop, "attempt", numbered_attempt).start()
        mock.patch.object(frames, "chunks", half_pushed).start()
        mock.patch.object(frames, "parsed", half_pulled).start()
        SessionProbe(session).before_commit(lambda: self.reach("pushed"))


@dataclass
class Result:
    flats: list[np.ndarray]
    loss: float
    norm: float
    samples: int


@dataclass
class Trainer:
    """What `psworker.loop.train` asks for. Batches are mere numbers; the worker's index is its target."""

    hold: Hold
    more: Callable[[int], bool]
    seconds: float
    nonfinite: bool
    # Each batch adds one to an element of its own, of so many for each worker, and does nothing else.
    ledger: int = 0
    target: float = 0.0
    narrow: bool = False
    samples: int = 0
    work: WorkUnits | None = None
    # Files by the numbers of steps that wait for them.
    gates: Mapping[int, Path] = field(default_factory=dict)
    steps: int = 0

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, int]]:
        self.target = float(worker_index)
        number = skip
        while self.more(number):
            yield number, number
            number += 1

    def unit_batches(self, worker_index: int, seed: int) -> Callable[[Unit], Iterator[Any]]:
        """Of dealt samples a batch is their numbers, nothing else."""
        self.target = float(worker_index)

        def batches(unit: Unit) -> Iterator[Any]:
            if unit.file:
                # A file of a few batches of ten samples: its name says how many.
                return iter([np.arange(10)] * int(unit.file.split("-")[1]))
            return unit.batches(np.arange(self.samples))

        return batches

    def step(self, flats: list[np.ndarray], batch: Any) -> Result:
        self.hold.reach("computing")
        gate = self.gates.get(self.steps)
        while gate is not None and not gate.exists():
            threading.Event().wait(LOOK_EVERY)
        self.steps += 1
        if self.seconds:
            threading.Event().wait(self.seconds)
        gradients = [flat - np.float32(self.target) for flat in flats]
        if self.ledger:
            own = np.zeros(sum(flat.size for flat in flats), np.float32)
            own[int(self.target) * self.ledger + batch] = -1
            gradients = np.split(own, np.cumsum([flat.size for flat in flats])[:-1])
        if self.nonfinite:
            gradients = [gradient * np.float32(math.nan) for gradient in gradients]
        norm = math.sqrt(sum(float(np.dot(g, g)) for g in gradients))
        samples = 32 if isinstance(batch, int) else len(batch)
        return Result(gradients, norm * norm / 2, norm, samples)

    def evaluate(self, flats: list[np.ndarray]) -> dict[str, float]:
        return {"mean": float(np.mean(np.concatenate(flats)))}


def initial_values(elements: int, wire_dtype: str) -> dict[str, np.ndarray]:
    """Of about so many elements. Codecs with scales encode long rows."""
    shape = (elements // 10, 10) if wire_dtype == "float32" else (10, elements // 10)
    return {"w": np.full(shape, 0.5, np.float32), "b": np.ones(3, np.float32)}


def main() -> int:
    parser = argparse.ArgumentParser()
    index = os.environ.get("PS_TASK_INDEX")
    parser.add_argument("--ps-hosts", default=os.environ.get("PS_HOSTS"))
    parser.add_argument("--task-index", type=int, default=None if index is None else int(index))
    parser.add_argument("--batches", type=int, default=sys.maxsize)
    parser.add_argument("--until", type=Path, help="the data ends when this file exists")
    parser.add_argument("--hold", default="@-1", metavar="MOMENT@BATCH")
    parser.add_argument("--elements", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.0, help="per step")
    gate = {"nargs": 2, "action": "append", "default": [], "metavar": ("STEP", "FILE")}
    parser.add_argument("--gate", **gate, help="computes step number STEP, from 0, once there is this file")
    parser.add_argument("--nonfinite", action="store_true")
    parser.add_argument("--server-timeout", type=float, default=60.0)
    parser.add_argument("--samples", type=int, default=0, help="work units of them")
    parser.add_argument("--unit", type=int, default=0)
    parser.add_argument("--files", nargs="*", default=(), metavar="NAME-BATCHES", help="work units of files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--ledger", type=int, default=0, help="batches of a worker at most: each has its element"
    )
    # The moments to hold at are between chunks, which shared memory does not have.
    parser.add_argument("--transport", help="default: auto, or grpc with --hold")
    parser.add_argument("--wire-dtype", default="float32")
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("launched", nargs="*", help="in place of psworker.script: its parent and its script")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    moment, _, batch = options.hold.partition("@")
    hold = Hold(moment, int(batch))

    def more(number: int) -> bool:
        return number < options.batches and not (options.until and options.until.exists())

    work = None
    if options.samples:
        work = WorkUnits(samples=options.samples, unit=options.unit, batch_size=10)
    elif options.files:
        work = WorkUnits(files=options.files)
    gates = {int(step): Path(file) for step, file in options.gate}
    trainer = Trainer(
        hold, more, options.seconds, options.nonfinite, samples=options.samples, work=work, gates=gates
    )
    trainer.ledger = options.ledger
    start = initial_values(options.elements, options.wire_dtype)
    try:
        with connect_link(
            options.ps_hosts,
            start,
            task_index=options.task_index,
            server_timeout=options.server_timeout,
            transport=options.transport or ("auto" if options.hold == "@-1" else "grpc"),
            local_rules=True,
            wire_dtype=options.wire_dtype,
            prefetch=options.prefetch,
            work=work,
            epochs=options.epochs,
        ) as session:
            hold.install(session)
            say("joined", worker=session.info.worker, next_batch=session.info.next_batch)
            outcome = loop.train(session, trainer, 1, lambda *_: None)
    except SessionError as error:
        say("failed", error=type(error).__name__, message=str(error))
        return CODES.get(type(error), 1)
    assert outcome.stop is not None
    reason, fates = outcome.stop.reason, outcome.fates
    say("finished", steps=outcome.steps, computed=trainer.steps, reason=reason, fates=fates)
    return 0 if outcome.stop.success else 3


if __name__ == "__main__":
    sys.exit(main())
