"""The algorithm of a worker, readable from top to bottom: grant, pull, gradients, push, commit."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psworker.errors import PayloadRefused, SessionError, Voided
from psworker.grants import Disposition, StopNotice
from psworker.session import Session

log = logging.getLogger("ps-worker")

Floats = NDArray[np.float32]

# So many batches in a row without a finite gradient are no accident.
NONFINITE_LIMIT = 10


class Diverged(SessionError):
    """Gradient after gradient is NaN or infinite."""


class Result(Protocol):
    @property
    def flats(self) -> list[Floats]: ...
    @property
    def loss(self) -> float: ...
    @property
    def norm(self) -> float: ...
    @property
    def samples(self) -> int: ...


class Trainer(Protocol):
    """What computes gradients; `psworker.tensorflow.Trainer` is one."""

    def batches(
        self, worker_index: int, worker_count: int, seed: int, epochs: int, skip: int
    ) -> Iterator[tuple[int, Any]]: ...

    def step(self, flats: list[Floats], batch: Any) -> Result: ...

    def evaluate(self, flats: list[Floats]) -> dict[str, float]: ...


@dataclass(slots=True)
class Outcome:
    """What a worker did."""

    steps: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stop: StopNotice | None = None


Progress = Callable[[int, float, list[Disposition]], None]


# An injected delay: called when a gradient is computed, before it is pushed.
Pause = Callable[[], None]


def no_pause() -> None:
    pass


def train(
    session: Session, trainer: Trainer, epochs: int, progress: Progress, pause: Pause = no_pause
) -> Outcome:
    """Work through this worker's data, then wait for the end of the job.

    `progress(steps, loss, dispositions)` is called after every commit, `pause`
    after every gradient. Raises SessionError, and whatever the trainer raises.
    """
    outcome = Outcome()
    batches = trainer.batches(
        session.worker_index, session.worker_count, session.seed, epochs, session.next_batch
    )
    bad = 0
    for (number, batch), more in with_more(batches):
        if session.stop is not None:
            break
        committed = step(session, trainer, number, batch, more, outcome, progress, pause)
        bad = 0 if committed else bad + 1
        if bad >= NONFINITE_LIMIT:
            raise Diverged(
                f"{bad} batches in a row gave no finite gradient: lower the learning rate, "
                "or look for a division by zero or log(0) in the loss"
            )
    outcome.stop = session.stop or session.done()
    if outcome.stop.evaluate:
        outcome.metrics = trainer.evaluate(session.pull_final())
        if outcome.metrics:
            session.report(outcome.metrics)
    return outcome


def step(
    session: Session,
    trainer: Trainer,
    number: int,
    batch: Any,
    more: bool,
    outcome: Outcome,
    progress: Progress,
    pause: Pause = no_pause,
) -> bool:
    """One batch, with a fresh grant whenever a ticket is cancelled. False: its gradient is not finite."""
    while (grant := session.ready()) is not None:
        try:
            with session.view_flat(grant) as weights:
                result = trainer.step(weights, batch)
            pause()
            if not math.isfinite(result.norm):
                raise PayloadRefused(f"the gradient's norm is {result.norm} (loss {result.loss})")
            session.contribute(
                grant,
                result.flats,
                samples=result.samples,
                loss=result.loss,
                norm=result.norm,
                batch=number,
                ready=more,
            )
        except Voided as reason:
            log.info("%s", reason)
            session.abandon(grant, "cancelled")
            continue
        except PayloadRefused as refusal:
            log.warning("batch %d is skipped: %s", number, refusal)
            session.abandon(grant, "nonfinite")
            return False
        outcome.steps += 1
        fates = session.dispositions()
        for disposition in fates:
            outcome.fates[disposition.fate] = outcome.fates.get(disposition.fate, 0) + 1
        progress(outcome.steps, result.loss, fates)
        return True
    return True


def with_more(items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item, and whether another follows: the last commit must not ask for a ticket."""
    iterator = iter(items)
    try:
        item = next(iterator)
    except StopIteration:
        return
    for following in iterator:
        yield item, True
        item = following
    yield item, False
