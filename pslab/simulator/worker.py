"""A simulated worker: the loop of a real one (grant, pull, gradients, push, commit) as a state machine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.channel import Channel
from pslab.simulator.trainers import Result, Trainer
from pslab.simulator.units import Unit, units
from psserver.coordinator.entries import Times
from psserver.coordinator.outputs import (
    CancelNotice,
    DispositionNotice,
    GrantNotice,
    Notice,
    RefusalNotice,
    StopNotice,
)
from pswire.config.distributions import Draw
from psworker.local import LocalWork

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
    # When its grant was heard, its weights were there and its gradient was ready.
    heard: float
    pulled: float = 0.0
    computed: float = 0.0
    before: float | None = None
    weights: list[Floats] = field(default_factory=list)
    result: Result | None = None
    void: bool = False
    # It was pulled, and the batches are being worked through.
    begun: bool = False


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
        # Set at each join: what is remembered between tickets belongs to an incarnation.
        self._work: LocalWork
        self._units: Iterator[Unit] = iter(())
        self._unit: Unit | None = None
        # What the local rule of this incarnation says.
        self._roams = False
        # It has weights of its own to take steps from: the rule roams, and there was a contribution.
        self._roaming = False
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
        self._work = self._cluster.local_work()
        self._roams, self._roaming = self._work.roams, False
        self._units = units(self._cluster.batches(self, next_batch), self._work.steps)
        self._next_unit()
        self._begin()

    # What it hears

    def hear(self, life: int, notice: Notice) -> None:
        if life != self.life:
            return
        match notice:
            case GrantNotice():
                self._granted(notice)
            case CancelNotice(ticket):
                self._cancelled(ticket)
            case StopNotice():
                self._stopped(notice)
            case RefusalNotice(_, True, _):
                self.start()
            case DispositionNotice() | RefusalNotice():
                pass

    def _granted(self, grant: GrantNotice) -> None:
        if grant.ticket <= self._last_ticket:
            return  # told again
        self._last_ticket = grant.ticket
        self._step = step = Step(grant.ticket, grant.initialise, self._cluster.agenda.now)
        if step.initialise:
            self._upload(step)
        elif self._cluster.network.free:
            self._pulled(step, grant.version)
        else:
            sizes = self._cluster.store.sizes
            self._cluster.network.download(sizes, partial(self._pulled, step, grant.version))

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
        step.weights, step.begun, step.pulled = weights, True, self._cluster.agenda.now
        self.steps += 1
        assert self._unit is not None
        if self._unit.walked:
            step.before, self._unit.before = self._unit.before, None
            self._computed(step)
        else:
            self._cluster.agenda.after(self._seconds(self._unit), self._computed, step)

    def _computed(self, step: Step) -> None:
        if step is not self._step:
            return
        if step.void:
            self._abandon(step, "cancelled")
            return
        step.computed = self._cluster.agenda.now
        if self.trainer is not None:
            assert self._unit is not None
            step.result = self._work.contribute(step.weights, self.trainer.step, self._unit.batches)
            if not math.isfinite(step.result.norm):
                self._not_finite(step)
                return
        self._upload(step)

    def _upload(self, step: Step) -> None:
        if self._cluster.store.empty:
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
        store = self._cluster.store
        if step.void or self._cluster.closed(step.ticket):
            self._abandon(step, "cancelled")
        elif not store.empty and store.push(step.ticket, self._payload(step)) is not None:
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
        unit = self._unit
        assert unit is not None
        self._nonfinite = 0
        if result is not None:
            self._work.keep()
        self._roaming = self._roams
        samples = result.samples if result is not None else cluster.batch_size * len(unit.batches)
        loss = result.loss if result is not None else math.nan
        norm = result.norm if result is not None else math.nan
        asks = unit.more and not self._roams
        self._next_unit()
        times = Times(step.pulled - step.heard, step.computed - step.pulled, step.before)
        self._say(cluster.commit, step.ticket, unit.last, samples, loss, norm, asks, times)
        if not asks:
            self._begin()

    def _abandon(self, step: Step, reason: str) -> None:
        self._step = None
        self._say(self._cluster.abandon, step.ticket, reason)
        if step.begun and self._work.steps > 1 and not (self._unit and self._unit.walked):
            # As in a real worker: several batches cannot be had again.
            self._next_unit()
            self._begin()
        else:
            self._ask()

    def _not_finite(self, step: Step) -> None:
        self._step = None
        self._say(self._cluster.abandon, step.ticket, "nonfinite")
        self._skip()

    def _skip(self) -> None:
        """The batches are skipped; too many in a row end this worker, as they end a real one."""
        self._nonfinite += 1
        if self._nonfinite >= NONFINITE_LIMIT:
            what = "batches" if self._work.steps == 1 else "tickets"
            self.failure = f"{self._nonfinite} {what} in a row gave no finite gradient"
            self._say(self._cluster.leave, f"Diverged: {self.failure}")
            self.die()
            return
        self._next_unit()
        self._begin()

    # Its data

    def _next_unit(self) -> None:
        self._unit = next(self._units, None)

    def _begin(self) -> None:
        """With the next unit: ask, take its steps before asking, or say that there is none."""
        if self._unit is None:
            self._say(self._cluster.done)
        elif self._roaming:
            self._unit.before = self._seconds(self._unit)
            self._cluster.agenda.after(self._unit.before, self._walked, self.life)
        else:
            self._ask()

    def _walked(self, life: int) -> None:
        if life != self.life:
            return
        assert self._unit is not None
        self._unit.walked = True
        if self.trainer is not None:
            walk = self._work.ahead(self.trainer.step, self._unit.batches)
            if not walk.finite:
                self._skip()
                return
        self._ask()

    def _seconds(self, unit: Unit) -> float:
        if len(unit.batches) == 1:
            return self._compute()
        return sum(self._compute() for _ in unit.batches)

    # What it says

    def _ask(self) -> None:
        self._say(self._cluster.ready)

    def _say(self, action: Any, *arguments: object) -> None:
        if self.up.immediate():
            action(self, self.incarnation, *arguments)
        else:
            self.up.send(action, self, self.incarnation, *arguments)

    def leave(self, reason: str) -> None:
        """Say goodbye before the data ends."""
        if self.alive:
            self._say(self._cluster.leave, reason)
            self.die()
