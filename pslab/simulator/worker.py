"""A simulated worker: the loop of a real one (grant, pull, gradients, push, commit) as a state machine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.post import Channel
from pslab.simulator.trainers import Result, Trainer
from psserver.coordinator.outputs import (
    CancelNotice,
    DispositionNotice,
    GrantNotice,
    Notice,
    RefusalNotice,
    StopNotice,
)
from pswire.delays import Draw

if TYPE_CHECKING:
    from pslab.simulator.cluster import Cluster

Floats = NDArray[np.float32]

# As in the real worker: so many batches in a row without a finite gradient are no accident.
NONFINITE_LIMIT = 10


@dataclass(slots=True)
class Step:
    """The ticket that a worker holds."""

    ticket: int
    initialise: bool
    weights: list[Floats] = field(default_factory=list)
    result: Result | None = None
    void: bool = False


class Worker:
    """One worker. `life` counts its processes: what an earlier life has put down does not happen.

    `compute` draws the seconds of a step, the injected delay included.
    """

    def __init__(
        self,
        cluster: "Cluster",
        index: int,
        compute: Draw,
        up: Channel,
        down: Channel,
        trainer: Trainer | None,
    ) -> None:
        self.name = f"w{index}"
        self.index = index
        self.incarnation = -1
        self.life = 0
        self.alive = False
        self.trainer = trainer
        self.up, self.down = up, down
        # Steps begun, and why the worker gave up, if it did.
        self.steps = 0
        self.failure = ""
        self._cluster = cluster
        self._compute = compute
        self._step: Step | None = None
        self._last_ticket = 0
        self._batches: Iterator[tuple[int, Any]] = iter(())
        self._batch: tuple[int, Any] | None = None
        self._nonfinite = 0

    @property
    def session(self) -> str:
        return f"{self.name}/{self.life}"

    # Life and death

    def start(self) -> None:
        """A new process, or the same one that has to join again."""
        self.life += 1
        self.alive = True
        self._step, self._last_ticket, self._nonfinite = None, 0, 0
        self.up.send(self._cluster.join, self, self.life)

    def die(self) -> None:
        self.life += 1
        self.alive = False
        self._step = None

    def joined(self, life: int, incarnation: int, next_batch: int) -> None:
        if life != self.life:
            return
        self.incarnation = incarnation
        self._batches = self._cluster.batches(self, next_batch)
        self._batch = next(self._batches, None)
        if self._batch is None:
            self._say(self._cluster.done)
        else:
            self._ask()

    # What it hears

    def hear(self, life: int, notice: Notice) -> None:
        if life != self.life:
            return
        match notice:
            case GrantNotice(ticket, version, _, initialise):
                self._granted(ticket, version, initialise)
            case CancelNotice(ticket):
                self._cancelled(ticket)
            case StopNotice():
                self._stopped(notice)
            case RefusalNotice(_, True, _):
                self.start()
            case DispositionNotice() | RefusalNotice():
                pass

    def _granted(self, ticket: int, version: int, initialise: bool) -> None:
        if ticket <= self._last_ticket:
            return  # told again
        self._last_ticket = ticket
        self._step = step = Step(ticket, initialise)
        if initialise:
            self._upload(step)
        elif self._cluster.network.free:
            self._pulled(step, version)
        else:
            sizes = self._cluster.store.sizes
            self._cluster.network.download(sizes, partial(self._pulled, step, version))

    def _cancelled(self, ticket: int) -> None:
        step = self._step
        if step is None or step.ticket != ticket:
            return
        step.void = True
        if self._cluster.interrupt:
            self._abandon(step, "cancelled")

    def _stopped(self, notice: StopNotice) -> None:
        if notice.evaluate:
            self._cluster.evaluate(self, notice.version)
        self.die()
        self._cluster.gone(self)

    # A step

    def _pulled(self, step: Step, version: int) -> None:
        if step is not self._step:
            return
        weights = self._cluster.store.read(step.ticket, version)
        if weights is None or step.void:
            self._abandon(step, "cancelled")
            return
        step.weights = weights
        self.steps += 1
        self._cluster.agenda.after(self._compute(), self._computed, step)

    def _computed(self, step: Step) -> None:
        if step is not self._step:
            return
        if step.void:
            self._abandon(step, "cancelled")
            return
        if self.trainer is not None:
            assert self._batch is not None
            step.result = self.trainer.step(step.weights, self._batch[1])
            if not math.isfinite(step.result.norm):
                self._not_finite(step)
                return
        self._upload(step)

    def _upload(self, step: Step) -> None:
        if self._cluster.store.admits_all:
            self._send(step)
        else:
            self._cluster.store.admit(step.ticket, partial(self._send, step))

    def _send(self, step: Step) -> None:
        network = self._cluster.network
        if network.free:
            self._pushed(step)
        else:
            network.upload(self._cluster.store.sizes, partial(self._pushed, step))

    def _pushed(self, step: Step) -> None:
        if step is not self._step:
            return
        if step.void or self._cluster.closed(step.ticket):
            self._abandon(step, "cancelled")
        elif self._cluster.store.push(step.ticket, self._payload(step)) is not None:
            self._not_finite(step)
        else:
            self._commit(step)

    def _payload(self, step: Step) -> list[Floats]:
        if step.initialise:
            return self._cluster.initial(self)
        return step.result.flats if step.result is not None else []

    def _commit(self, step: Step) -> None:
        cluster, result = self._cluster, step.result
        self._step = None
        if step.initialise:
            self._say(cluster.commit, step.ticket, 0, 0, math.nan, math.nan, False)
            self._ask()
            return
        assert self._batch is not None
        number = self._batch[0]
        self._batch = next(self._batches, None)
        self._nonfinite = 0
        more = self._batch is not None
        samples = result.samples if result is not None else cluster.batch_size
        loss = result.loss if result is not None else math.nan
        norm = result.norm if result is not None else math.nan
        self._say(cluster.commit, step.ticket, number, samples, loss, norm, more)
        if not more:
            self._say(cluster.done)

    def _abandon(self, step: Step, reason: str) -> None:
        self._step = None
        self._say(self._cluster.abandon, step.ticket, reason)
        self._ask()

    def _not_finite(self, step: Step) -> None:
        """The batch is skipped; too many in a row end this worker, as they end a real one."""
        self._step = None
        self._say(self._cluster.abandon, step.ticket, "nonfinite")
        self._nonfinite += 1
        if self._nonfinite >= NONFINITE_LIMIT:
            self.failure = f"{self._nonfinite} batches in a row gave no finite gradient"
            self._say(self._cluster.leave, f"Diverged: {self.failure}")
            self.die()
            return
        self._batch = next(self._batches, None)
        if self._batch is None:
            self._say(self._cluster.done)
        else:
            self._ask()

    # What it says

    def _ask(self) -> None:
        self._say(self._cluster.ready)

    def _say(self, action: Any, *arguments: object) -> None:
        if self.up.perfect:
            action(self, self.incarnation, *arguments)
        else:
            self.up.send(action, self, self.incarnation, *arguments)

    def leave(self, reason: str) -> None:
        """Say goodbye before the data ends."""
        if self.alive:
            self._say(self._cluster.leave, reason)
            self.die()
