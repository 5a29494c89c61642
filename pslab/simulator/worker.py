"""A simulated worker: the loop of a real one (grant, pull, gradients, push, commit) as a state machine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pslab.protocol_adapter import event_of
from pslab.simulator.channel import Channel
from pslab.simulator.dealt import Dealing, Source
from pslab.simulator.event_queue import EventQueue
from pslab.simulator.network import Network
from pslab.simulator.store import Store
from psserver.coordinator.outputs import Notice
from pswire.config.distributions import Draw
from psworker.engine import Cancel, ClientEngine, Commit, Grant, Refusal, Request, Stop, Times, UnitPart
from psworker.local import NONFINITE_LIMIT, LocalWork, ReadAhead, Result, Trainer

Floats = NDArray[np.float32]


class Surroundings(Protocol):
    """What a worker needs of the cluster around it."""

    queue: EventQueue
    network: Network
    store: Store
    # Cancelled workers stop at once.
    interrupt: bool
    # Samples of a batch, where only time matters.
    batch_size: int
    # From a worker and its first batch to its numbered batches.
    batches: Callable[["Worker", int], Iterator[tuple[int, Any]]]
    # None where each worker has data of its own.
    dealing: Dealing | None

    def join(self, worker: "Worker", life: int) -> None: ...

    def receive(self, worker: "Worker", incarnation: int, request: Request) -> None:
        """A request of this incarnation arrives at the coordinator."""
        ...

    def gone(self, worker: "Worker") -> None:
        """The process has ended after the stop."""
        ...

    def closed(self, ticket: int) -> bool:
        """The shards take no payload for it any more."""
        ...

    def local_work(self) -> LocalWork: ...

    def initial(self, worker: "Worker") -> list[Floats]:
        """The payload of version 0."""
        ...

    def evaluate(self, worker: "Worker", version: int) -> None: ...


@dataclass(slots=True)
class Unit:
    """The batches of one ticket. `last`: the number of the last; `more`: there is data behind them."""

    batches: list[Any]
    last: int
    more: bool
    # Their steps were taken before the grant, in `before` seconds.
    steps_taken: bool = False
    before: float | None = None
    # It is the last part of a work unit.
    ends: bool = False


@dataclass(slots=True)
class Step:
    """The ticket that a worker holds."""

    ticket: int
    initialise: bool
    # When its grant was received, its weights were there and its gradient was ready.
    granted: float
    pulled: float = 0.0
    computed: float = 0.0
    before: float | None = None
    weights: list[Floats] | None = None
    result: Result | None = None
    # It was pulled, and the batches are being worked through.
    begun: bool = False


class Worker:
    """One worker. `life` counts its processes: what an earlier life has scheduled does not happen.

    `compute` draws the seconds of a step, the injected delay included.
    """

    def __init__(
        self,
        cluster: Surroundings,
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
        self.compute = compute
        self._engine = ClientEngine(lossless_link=True)
        self._joined = False
        self._step: Step | None = None
        # Set at each join: what is remembered between tickets belongs to an incarnation.
        self._work: LocalWork
        self._data = ReadAhead(iter(()))
        self._steps = 1
        self._unit: Unit | None = None
        # What the local rule of this incarnation says.
        self._steps_before_pull = False
        # It has weights of its own to take steps from: such a rule, and there was a contribution.
        self._has_own_weights = False
        self._nonfinite = 0
        # Of dealt data, in place of `_data`.
        self._source: Source | None = None

    @property
    def session(self) -> str:
        return f"{self.name}/{self.life}"

    # Life and death

    def start(self) -> None:
        """A new process, or the same one that has to join again."""
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
        self._steps_before_pull, self._has_own_weights = self._work.steps_before_pull, False
        self._steps = self._work.steps
        dealing = self._cluster.dealing
        if dealing is not None:
            self._source = dealing.source(self.trainer, self.index, self._steps)
        else:
            self._data = ReadAhead(self._cluster.batches(self, next_batch))
            self._next_unit()
        self._begin()

    # What it receives

    def receive(self, life: int, notice: Notice) -> None:
        if life != self.life:
            return
        event = event_of(notice, self._cluster.queue.now)
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
        if grant.part is not None and not self._read(grant.part):
            self._step = None
            self._send(self._engine.abandon(grant.ticket, "the unit has ended", unit_ends=True))
            self._ask()
            return
        if step.initialise:
            self._upload(step)
        elif self._cluster.network.free:
            self._pulled(step, grant.version)
        else:
            sizes = self._cluster.store.sizes
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
        step.weights, step.begun, step.pulled = weights, True, self._cluster.queue.now
        self.steps += 1
        assert self._unit is not None
        if self._unit.steps_taken:
            step.before, self._unit.before = self._unit.before, None
            self.computed(step)
        else:
            batches = self._unit.batches
            seconds = self.compute() if len(batches) == 1 else self._seconds(self._unit)
            self._cluster.queue.after(seconds, self.computed, step)

    def computed(self, step: Step) -> None:
        if step is not self._step:
            return
        if step.ticket in self._engine.void:
            self._abandon(step, "cancelled")
            return
        step.computed = self._cluster.queue.now
        if self.trainer is not None:
            assert self._unit is not None and step.weights is not None
            step.result = self._work.payload(step.weights, self.trainer.step, self._unit.batches)
            if not math.isfinite(step.result.norm):
                self._not_finite(step)
                return
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
            network.upload(self._cluster.store.sizes, partial(self._pushed, step))

    def _pushed(self, step: Step) -> None:
        if step is not self._step:
            return
        store = self._cluster.store
        if step.ticket in self._engine.void or self._cluster.closed(step.ticket):
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
        result, unit = step.result, self._unit
        self._step = None
        if step.initialise:
            self._send(self._engine.commit(Commit(step.ticket)))
            self._ask()
            return
        assert unit is not None
        self._nonfinite = 0
        if result is not None:
            self._work.keep()
        self._has_own_weights = self._steps_before_pull
        asks = unit.more and not self._steps_before_pull
        ends = unit.ends
        times = Times(step.pulled - step.granted, step.computed - step.pulled, step.before)
        if result is None:
            samples, loss = self._cluster.batch_size * len(unit.batches), math.nan
        else:
            samples, loss = result.samples, result.loss
        self._next_unit()
        told = (step.ticket, unit.last, samples, loss, asks, times)
        self._send(self._engine.commit(Commit(*told, unit_ends=ends)))
        if not asks:
            self._begin()

    def _abandon(self, step: Step, reason: str) -> None:
        self._step = None
        self._send(self._engine.abandon(step.ticket, reason))
        if step.begun and self._work.steps > 1 and not (self._unit and self._unit.steps_taken):
            # As in a real worker: several batches cannot be read again.
            self._next_unit()
            self._begin()
        else:
            self._ask()

    def _not_finite(self, step: Step) -> None:
        self._step = None
        self._send(self._engine.abandon(step.ticket, "nonfinite"))
        self._skip()

    def _skip(self) -> None:
        """The batches are skipped; too many in a row end this worker, as they end a real one."""
        self._nonfinite += 1
        if self._nonfinite >= NONFINITE_LIMIT:
            what = "batches" if self._work.steps == 1 else "tickets"
            self.failure = f"{self._nonfinite} {what} in a row gave no finite gradient"
            self.leave(f"Diverged: {self.failure}")
            return
        self._next_unit()
        self._begin()

    # Its data

    def _next_unit(self) -> None:
        """A real worker reads batch by batch, during the ticket; here they may as well be read at once."""
        if self._source is not None:
            return  # it comes with the next grant
        data = self._data
        if data.following is None:
            self._unit = None
            return
        last, batch = data.take()
        batches = [batch]
        while len(batches) < self._steps and data.following is not None:
            last, batch = data.take()
            batches.append(batch)
        self._unit = Unit(batches, last, data.following is not None)

    def _read(self, part: UnitPart) -> bool:
        """The part of a work unit that a grant names; False: there is none."""
        assert self._source is not None
        found = self._source.read(part)
        if found is not None:
            self._unit = Unit(list(found.batches), found.last, more=True, ends=found.ends)
        return found is not None

    def _begin(self) -> None:
        """With the next unit: ask, take its steps before asking, or say that there is none."""
        if self._source is not None:
            self._ask()
        elif self._unit is None:
            self._send(self._engine.done())
        elif self._has_own_weights:
            self._unit.before = self._seconds(self._unit)
            self._cluster.queue.after(self._unit.before, self._took_steps, self.life)
        else:
            self._ask()

    def _took_steps(self, life: int) -> None:
        if life != self.life:
            return
        assert self._unit is not None
        self._unit.steps_taken = True
        if (
            self.trainer is not None
            and not self._work.take_steps(self.trainer.step, self._unit.batches).finite
        ):
            self._skip()
            return
        self._ask()

    def _seconds(self, unit: Unit) -> float:
        return sum(self.compute() for _ in unit.batches)

    # What it sends

    def _ask(self) -> None:
        self._send(self._engine.ready())
        self._take_grant()

    def _send(self, requests: list[Request]) -> None:
        up, receive = self.up, self._cluster.receive
        for request in requests:
            if up.immediate():
                receive(self, self.incarnation, request)
            else:
                up.send(receive, self, self.incarnation, request)

    def leave(self, reason: str) -> None:
        """Leave before the data ends."""
        if self.alive:
            self._send(self._engine.leave(reason))
            self.die()
