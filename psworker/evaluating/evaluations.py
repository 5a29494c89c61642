"""Between the steps of one worker: a version is measured, and others hear of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psworker.engine import Grant
from psworker.evaluating.every import Every
from psworker.evaluating.plateau import Plateau
from psworker.evaluating.watched import Watched

Floats = NDArray[np.float32]


class Evaluations:
    """It copies a granted version when an evaluation is due, and measures it when the ticket is committed: nobody waits
    for a ticket meanwhile, but a barrier waits for this worker's next one.

    `report` takes version and metrics; `keep` the weights of the best version. `plateau` says what follows for the
    learning rate, of which `rate` tells the present one. `clock` gives seconds.
    """

    def __init__(
        self,
        every: Every,
        watched: Watched,
        trainer: Any,
        report: Callable[[int, Mapping[str, float]], object],
        keep: Callable[[list[Floats]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        plateau: Plateau | None = None,
        rate: Callable[[], float | None] = lambda: None,
        lowered: Callable[[int, float], object] = lambda version, rate: None,
    ) -> None:
        """`lowered`: told from which version's evaluation on the rate is another."""
        self.every, self.watched = every, watched
        self._trainer, self._report, self._keep, self._clock = trainer, report, keep, clock
        self._plateau, self._rate, self._lowered = plateau, rate, lowered
        self._last = self._now(0, None)
        self._due: tuple[int, list[Floats]] | None = None
        #: The learning rate that the next contribution takes along; None: nothing changes.
        self.learning_rate: float | None = None

    @property
    def pending(self) -> bool:
        """A version is to be measured."""
        return self._due is not None

    def look(self, grant: Grant, weights: Sequence[NDArray[Any]]) -> None:
        """The weights of a grant, which last as long as its ticket."""
        now = self._now(grant.version, grant)
        # The servers may have gone back to a checkpoint.
        self._last = min(self._last, now)
        if now - self._last >= self.every.amount:
            self._last = now
            self._due = grant.version, [np.array(flat, np.float32) for flat in weights]

    def committed(self) -> None:
        """A contribution counts, and the rate that it took along."""
        self.learning_rate = None

    def measure(self) -> None:
        """What is due, if anything is. Raises MonitorError, and whatever the trainer raises."""
        if self._due is None:
            return
        (version, weights), self._due = self._due, None
        better = self.judge(version, weights, self._trainer.evaluate(weights))
        present = self._rate() if self._plateau is not None and not self.watched.ends else None
        if self._plateau is None or present is None:
            return
        self.learning_rate = self._plateau.add(better, present)
        if self.learning_rate is not None:
            self._lowered(version, self.learning_rate)

    def judge(self, version: int, weights: list[Floats], metrics: Mapping[str, float]) -> bool:
        """Metrics of a version, to whom it concerns; whether it is the best so far."""
        better = self.watched.add(version, metrics)
        self._report(version, metrics)
        if better and self._keep is not None:
            self._keep(weights)
        return better

    def went_back(self) -> None:
        """The servers went back to a checkpoint: what this worker was about to say is of another course."""
        self._due = self.learning_rate = None

    def _now(self, version: int, grant: Grant | None) -> float:
        match self.every.unit:
            case "version":
                return version
            case "epoch":
                dealt = grant.part if grant is not None else None
                return dealt.epoch if dealt is not None else int(getattr(self._trainer, "epoch", 0))
            case _:
                return self._clock()
