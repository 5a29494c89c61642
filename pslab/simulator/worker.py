"""A simulated worker: the loop of a real one (grant, pull, gradients, push, commit) as a state machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.network import Channel
from pslab.simulator.worker_data import Surroundings, TicketWork, WorkerData
from pswire import protocol
from pswire.config.distributions import Draw
from pswire.model.rows import NO_ROWS, RowsByName
from pswire.protocol import received
from psworker.engine import Cancel, ClientEngine, Commit, Grant, Refusal, Request, Stop, Times
from psworker.local import NONFINITE_LIMIT, LocalWork, Result, Trainer, gradient_of

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Step:
    """The ticket that a worker holds. `granted`, `pulled`, `computed`: when its grant, weights and gradient were there.

    `begun`: the weights are there, and the worker computes.
    """

    ticket: int
    initialise: bool
    granted: float
    pulled: float = 0.0
    computed: float = 0.0
    before: float | None = None
    weights: list[Floats] | None = None
    result: Result | None = None
    begun: bool = False


class Worker:
    """One worker. `life` counts its processes: actions that an earlier life has scheduled do nothing.

    `compute` draws the seconds of a step, including the injected delay.
    """

    def __init__(
        self,
        cluster: Surroundings["Worker"],
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
        # Batches of its own data where only time is simulated; 0: none, or unknown.
        self.own_batches = 0
        self.up, self.down = up, down
        # The number of steps begun, and why the worker left early; empty if it did not.
        self.steps = 0
        # The version that it pulled last.
        self._known: int | None = None
        self.failure = ""
        self._cluster = cluster
        self.compute = compute
        self._engine = ClientEngine(lossless_link=True)
        self._joined = False
        self._step: Step | None = None
        # Set at each join: the memory between tickets belongs to an incarnation.
        self._work: LocalWork
        self._data: WorkerData
        # The local rule takes steps before it pulls; after the first contribution, from weights of its own.
        self._steps_before_pull = False
        self._has_own_weights = False
        self._nonfinite = 0

    @property
    def session(self) -> str:
        return f"{self.name}/{self.life}"

    # Processes

    def start(self) -> None:
        """Start a new process, or have the same one join again."""
        self.life += 1
        self.alive = True
        self._engine = ClientEngine(lossless_link=True)
        self._joined, self._step, self._nonfinite = False, None, 0
        self.up.send(self._cluster.join, self, self.life)

    def die(self) -> None:
        self.life += 1
        self.alive = False
        self._step = None

    def joined(self, life: int, incarnation: int, next_batch: int) -> None:
        if life != self.life or self._joined:
            return
        self._joined, self.incarnation = True, incarnation
        self._work = self._cluster.local_work()
        self._steps_before_pull, self._has_own_weights = self._work.rule.steps_before_pull, False
        dealing, steps = self._cluster.dealing, self._work.rule.steps
        if dealing is not None:
            self._data = WorkerData(iter(()), dealing.source(self.trainer, self.index, steps), steps)
        else:
            self._data = WorkerData(self._cluster.batches(self, next_batch), None, steps)
        self._begin()

    # Notices

    def receive(self, life: int, notice: protocol.Event) -> None:
        if life != self.life:
            return
        event = received(notice, self._cluster.queue.now)
        self._engine.receive(event)
        match event:
            case Grant():
                self._take_grant()
            case Cancel(ticket):
                if self._step is not None and self._step.ticket == ticket and self._cluster.interrupt:
                    self._abandon(self._step, "cancelled")
            case Stop(version=version, evaluate=evaluate):
                if evaluate:
                    self._cluster.evaluate(self, version)
                self.die()
                self._cluster.gone(self)
            case Refusal(message, fatal):
                if fatal:
                    self.start()
                else:
                    self.failure = message
                    self.leave(f"Refused: {message}")

    def _take_grant(self) -> None:
        if self._step is not None or not self._engine.grants:
            return
        grant = self._engine.take_grant()
        if grant is None:
            return
        self._step = step = Step(grant.ticket, grant.initialise, grant.received_at)
        if grant.part is not None and not self._data.read(grant.part):
            self._step = None
            self._send(self._engine.abandon(grant.ticket, "the unit has ended", unit_ends=True))
            self._ask()
            return
        if step.initialise:
            self._upload(step)
        elif self._cluster.network.free:
            self._pulled(step, grant.version)
        else:
            sizes = self._cluster.store.sizes_from(self._known, grant.version)
            self._cluster.network.download(sizes, partial(self._pulled, step, grant.version))

    # A step

    def _pulled(self, step: Step, version: int) -> None:
        if step is not self._step:
            return
        store = self._cluster.store
        weights = [] if store.empty else store.read(step.ticket, version)
        if weights is None or step.ticket in self._engine.void:
            self._abandon(step, "cancelled")
            return
        self._known = version
        step.weights, step.begun, step.pulled = weights, True, self._cluster.queue.now
        self.steps += 1
        present = self._present
        if present.steps_taken:
            step.before, present.before = present.before, None
            self.computed(step)
        elif not present.going_on:
            self._compute(step)

    def _compute(self, step: Step) -> None:
        """Take the steps that are left of a ticket whose weights are there."""
        batches, ahead = self._present.batches, self._present.ahead
        seconds = self.compute() if len(batches) == 1 and not ahead else self._seconds(batches[ahead:])
        self._cluster.queue.after(seconds, self.computed, step)

    def _go_on(self) -> None:
        """Take the first steps of the next ticket while the contribution travels."""
        following = self._data.following()
        if following is not None:
            begun = following.batches[: self._work.rule.overlap]
            following.ahead, following.going_on = len(begun), True
            self._cluster.queue.after(self._seconds(begun), self._went_on, following, self.life)

    def _went_on(self, work: TicketWork, life: int) -> None:
        if life != self.life:
            return
        work.going_on = False
        step = self._step
        if step is not None and step.begun and work is self._data.present:
            self._compute(step)

    def computed(self, step: Step) -> None:
        if step is not self._step:
            return
        if step.ticket in self._engine.void:
            self._abandon(step, "cancelled")
            return
        step.computed = self._cluster.queue.now
        if self.trainer is not None:
            assert step.weights is not None
            assert self._known is not None
            gradient = gradient_of(self.trainer, partial(self._cluster.store.read_rows, self._known))
            step.result = self._work.payload(step.weights, gradient, self._present.batches, self._known)
            if not math.isfinite(step.result.norm):
                self._not_finite(step)
                return
        if self._work.rule.overlap and not self._data.dealt:
            self._go_on()
        self._upload(step)

    def _upload(self, step: Step) -> None:
        store = self._cluster.store
        if not store.empty:
            store.admit(step.ticket, partial(self._transfer, step))
        elif self._cluster.network.free:
            self._pushed(step)
        else:
            self._transfer(step)

    def _transfer(self, step: Step) -> None:
        network = self._cluster.network
        if network.free:
            self._pushed(step)
        else:
            sizes = self._cluster.store.sizes_up(None if step.initialise else self._known)
            network.upload(sizes, partial(self._pushed, step))

    def _pushed(self, step: Step) -> None:
        if step is not self._step:
            return
        store = self._cluster.store
        residual = store.residual(self.name, self._engine.pending.dropped)
        if step.ticket in self._engine.void or self._cluster.closed(step.ticket):
            self._abandon(step, "cancelled")
        elif not store.empty and store.push(step.ticket, self._payload(step), _rows(step)) is not None:
            self._not_finite(step)
        else:
            self._commit(step, residual)

    def _payload(self, step: Step) -> list[Floats]:
        if step.initialise:
            return self._cluster.initial(self)
        return step.result.flats if step.result is not None else []

    def _commit(self, step: Step, residual: int | None) -> None:
        result = step.result
        self._step = None
        if step.initialise:
            self._send([self._engine.commit(Commit(step.ticket))])
            self._ask()
            return
        present = self._present
        self._nonfinite = 0
        if result is not None:
            self._work.keep()
        self._has_own_weights = self._steps_before_pull
        asks = present.more and not self._steps_before_pull
        times = Times(step.pulled - step.granted, step.computed - step.pulled, step.before)
        if result is None:
            samples, loss = self._cluster.batch_size * len(present.batches), math.nan
        else:
            samples, loss = result.samples, result.loss
        self._data.next()
        commit = Commit(
            step.ticket,
            present.last,
            samples,
            loss,
            asks,
            times,
            unit_ends=present.ends,
            residual=residual,
        )
        self._send([self._engine.commit(commit)])
        if not asks:
            self._begin()

    def _abandon(self, step: Step, reason: str) -> None:
        self._step = None
        self._send(self._engine.abandon(step.ticket, reason))
        if (
            step.begun
            and self._work.rule.steps > 1
            and not (self._data.present and self._data.present.steps_taken)
        ):
            # As in a real worker, several batches cannot be read again.
            self._data.next()
            self._begin()
        else:
            self._ask()

    def _not_finite(self, step: Step) -> None:
        self._step = None
        self._send(self._engine.abandon(step.ticket, "nonfinite"))
        self._skip()

    def _skip(self) -> None:
        """Skip the batches. Too many in a row end this worker, as they end a real one."""
        self._nonfinite += 1
        if self._nonfinite >= NONFINITE_LIMIT:
            what = "batches" if self._work.rule.steps == 1 else "tickets"
            self.failure = f"{self._nonfinite} {what} in a row gave no finite gradient"
            self.leave(f"Diverged: {self.failure}")
            return
        self._data.next()
        self._begin()

    def _begin(self) -> None:
        """Begin with the next batches: ask for a ticket, or take their steps first, or say that there are none."""
        present = self._data.present
        if self._data.dealt:
            self._ask()
        elif present is None:
            self._send(self._engine.done())
        elif self._has_own_weights:
            present.before = self._seconds(present.batches)
            self._cluster.queue.after(present.before, self._took_steps, self.life)
        else:
            self._ask()

    def _took_steps(self, life: int) -> None:
        if life != self.life:
            return
        present = self._present
        present.steps_taken = True
        if self.trainer is not None and not self._work.take_steps(self.trainer.step, present.batches).finite:
            self._skip()
            return
        self._ask()

    @property
    def _present(self) -> TicketWork:
        """The work of the ticket in hand."""
        assert self._data.present is not None
        return self._data.present

    def _seconds(self, batches: Sequence[Any]) -> float:
        return sum(self.compute() for _ in batches)

    # Requests

    def _ask(self) -> None:
        self._send(self._engine.ready())
        self._take_grant()

    def _send(self, requests: Sequence[Request]) -> None:
        up, receive = self.up, self._cluster.receive
        for request in requests:
            if up.immediate():
                receive(self, self.incarnation, request)
            else:
                up.send(receive, self, self.incarnation, request)

    def leave(self, reason: str) -> None:
        """Leave the job before the data ends."""
        if self.alive:
            self._send(self._engine.leave(reason))
            self.die()


def _rows(step: Step) -> RowsByName:
    """Return the gradients of rows of tables in a step's payload."""
    return getattr(step.result, "rows", NO_ROWS)
