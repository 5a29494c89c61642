"""The shell around coordinator and store, in place of the servers' service: routes messages in and decisions out."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.simulator.folder import Folder
from pslab.simulator.network import Channel, EventQueue, LinkFaults, Network
from pslab.simulator.store import ShardStore, SimulatedStore
from pslab.simulator.worker import Worker
from pslab.simulator.worker_data import Dealing
from psserver.coordinator import (
    Coordinator,
    Input,
    JobTerms,
    Joined,
    Output,
    Record,
    Send,
    inputs,
)
from psserver.coordinator.terms import Extent, Proposal
from psserver.decisions.entries import Apply, Checkpoint, Grant, Install
from psserver.policies import Policy
from pswire import protocol
from pswire.config.distributions import Draw
from psworker.engine import Commit, Done, Leave, Request
from psworker.local import LocalWork, Trainer, evaluated
from psworker.local import build as build_local

Floats = NDArray[np.float32]

# From a worker and its first batch to its numbered batches.
Batches = Callable[[Worker, int], Iterator[tuple[int, Any]]]
# Requests that start a deadline of the coordinator.
_LAST = (Done, Leave)
# Seconds after a deadline of the coordinator at which it ticks: the sum of two times may be rounded down.
SLACK = 1e-6


class Cluster:
    """Coordinator, store, links and workers of one job on one queue. Make it with `build`, then `run` it."""

    def __init__(
        self,
        terms: JobTerms,
        policy: Policy,
        proposal: Proposal,
        store: SimulatedStore,
        *,
        batches: Batches,
        dealing: Dealing | None = None,
        network: Network,
        queue: EventQueue,
        link_faults: LinkFaults,
        batch_size: int = 1,
        interrupt: bool = False,
        evaluate: int = 0,
        until_accuracy: float = 0.0,
    ) -> None:
        self.queue, self.network, self.store = queue, network, store
        self.terms, self.policy, self.proposal = terms, policy, proposal
        self.batches, self.batch_size, self.interrupt = batches, batch_size, interrupt
        self.dealing = dealing
        # Versions between evaluations, and the accuracy that ends the job; 0: none.
        self.every, self.until_accuracy = evaluate, until_accuracy
        self.workers: dict[str, Worker] = {}
        self.metrics: dict[str, float] = {}
        self.coordinator = Coordinator(terms, policy)
        # Seconds of the job before this run.
        self._before = 0.0
        # When the first grant was given.
        self.first_grant: float | None = None
        self.folder = Folder(None, record=False)
        # Set from outside, for example by a signal handler: `run` returns before the next action.
        self.halted = False
        # Called with the entry of each checkpoint, once every decision of its step is executed.
        self.save: Callable[[Record], None] = lambda _: None
        self._begin: Callable[[], list[Output]] = self._open
        self._link_faults = link_faults
        # Notices that arrive at the moment at which they were sent.
        self._inbox: deque[tuple[Worker, int, protocol.Event]] = deque()
        # When the queue has a tick for the next timer.
        self._timer: float | None = None

    # Making

    def add_worker(self, index: int, compute: Draw, rng: Random, trainer: Trainer | None) -> Worker:
        """Add a worker, which is not started yet. `rng`: decides about its messages."""
        up, down = Channel(self.queue, self._link_faults, rng), Channel(self.queue, self._link_faults, rng)
        worker = Worker(self, index, compute, up, down, trainer)
        self.workers[worker.name] = worker
        return worker

    # Running

    def run(self, watch: Callable[["Cluster"], None] | None = None, every: int = 4096) -> None:
        """Run until the job is over, or `halted`. Call `watch` after every `every` actions."""
        self._route(self._begin())
        queue, coordinator, inbox = self.queue, self.coordinator, self._inbox
        while not (self.halted or coordinator.state.over):
            if not queue.step():
                self._strand()
            while inbox:
                worker, life, notice = inbox.popleft()
                worker.receive(life, notice)
            if watch is not None and queue.done % every == 0:
                watch(self)

    def _open(self) -> list[Output]:
        outputs = self.coordinator.take(inputs.Opened(), 0.0)
        self.coordinator.take(inputs.ModelProposed(self.proposal), 0.0)
        if self.dealing is not None:
            outputs += self.coordinator.take(inputs.WorkDeclared(self.dealing.terms), 0.0)
        return outputs

    def resume(self, coordinator: Coordinator, rolled_back: int) -> None:
        """Have `run` begin with this coordinator, which has the state of a checkpoint, as the store has.

        See `psserver.coordinator.inputs.Resumed`.
        """
        self.coordinator = coordinator
        self._before = coordinator.state.now - self.queue.now
        self._begin = partial(coordinator.take, inputs.Resumed(rolled_back), self.now)

    def _strand(self) -> None:
        """End the job when the queue is empty: by its idle timeout, or because it is stuck."""
        coordinator = self.coordinator
        self.queue.now += max(self.terms.idle_timeout, self.terms.worker_timeout) + SLACK
        self.tick()
        if coordinator.state.stopped is None:
            missing = 0 if coordinator.state.started else coordinator.missing
            if missing:
                reason = f"the start waits for {missing} of {self.terms.quorum} workers, and none will come"
                self.stop(reason, success=False, cause="abandoned")
            else:
                self.stop("nothing is left to happen: no worker works and none will come", success=False)
        for worker in self.workers.values():
            self.gone(worker)

    def stop(self, reason: str, *, success: bool, cause: str = "policy") -> None:
        """End the job from outside, as a signal ends servers."""
        self.give(inputs.Stopping(reason, success, cause))

    @property
    def now(self) -> float:
        """Seconds of the job: those of the virtual clock, and those before a checkpoint from which the run goes on."""
        return self._before + self.queue.now

    def give(self, given: Input) -> list[Output]:
        """Give the coordinator an input now, and carry out what it decides."""
        outputs = self.coordinator.take(given, self.now)
        self._route(outputs)
        return outputs

    # Requests of workers. One of a former incarnation is refused.

    def join(self, worker: Worker, life: int) -> None:
        """Receive a worker's Join, and send the answer back. It may be refused."""
        if life != worker.life:
            return
        asked = inputs.JoinAsked(worker.name, worker.session, worker.index, self.store.remembers)
        outputs = self.coordinator.take(asked, self.now)
        joined = next((each for each in outputs if isinstance(each, Joined)), None)
        if joined is None:
            worker.die()  # the job is over
        else:
            worker.incarnation = joined.incarnation
        self._route(outputs)
        if joined is None:
            return
        # Before the stream is connected, so that the answer to the join comes first.
        next_batch = self.coordinator.state.roster.tally(worker.name).next_batch
        worker.down.send(worker.joined, life, joined.incarnation, next_batch)
        self.give(inputs.Connected(worker.name, joined.incarnation, worker.session))

    def receive(self, worker: Worker, incarnation: int, request: Request) -> None:
        """Receive a request of this incarnation."""
        norm = math.nan
        if isinstance(request, Commit):
            norm = self.store.norm(request.ticket)
            total = worker.own_batches or getattr(worker.trainer, "total_batches", 0)
            if self.terms.plan and total:
                self.give(inputs.DataSized(worker.name, Extent(1, total)))
        self.give(inputs.Requested(worker.name, incarnation, request, norm))
        if type(request) in _LAST:
            self.tick_after(self.terms.worker_timeout)

    def closed(self, ticket: int) -> bool:
        """Return True if the shards take no payload for this ticket any more."""
        return ticket not in self.coordinator.state.tickets.live

    # The session stream

    def disconnect(self, worker: Worker, incarnation: int) -> None:
        """Notice that the stream of this incarnation is broken."""
        self.give(inputs.Disconnected(worker.name, incarnation))
        self.tick_after(self.terms.grace)
        self.tick_after(self.terms.grace + self.terms.worker_timeout)

    def connect(self, worker: Worker, incarnation: int, session: str) -> None:
        """Connect a worker's session stream."""
        self.give(inputs.Connected(worker.name, incarnation, session))

    def gone(self, worker: Worker) -> None:
        """Notice that the process has ended after the stop."""
        self.give(inputs.Disconnected(worker.name, worker.incarnation))

    # Time

    def tick_after(self, seconds: float) -> None:
        """Schedule a tick of the coordinator at a deadline, in place of one every second."""
        if self.coordinator.state.stopped is None:
            self.queue.after(seconds + SLACK, self.tick)

    def tick(self) -> None:
        """Have the coordinator look at the clock."""
        self.give(inputs.Tick())

    # Learning

    def local_work(self) -> LocalWork:
        """Return the policy's local rule, with an empty memory."""
        rule = self.policy.local_rule
        plan = self.store.plan if isinstance(self.store, ShardStore) else None
        trainable = [] if plan is None else [shard.trainable for shard in plan.shards]
        return LocalWork(build_local(rule.name, rule.knobs, trainable, plan))

    def initial(self, worker: Worker) -> list[Floats]:
        """Return the payload of version 0: one flat array per shard."""
        if worker.trainer is None or not isinstance(self.store, ShardStore):
            return []
        return self.store.plan.scatter([values for _, values in worker.trainer.specs])

    def evaluate(self, worker: Worker, version: int) -> None:
        """Have a worker evaluate the newest version."""
        if worker.trainer is None or not isinstance(self.store, ShardStore):
            return
        read = partial(self.store.read_rows, self.store.version)
        self.metrics = evaluated(worker.trainer, self.store.flats(), read)
        if self.metrics:
            self.folder.evaluated(self.now, version, worker.name, self.metrics)

    def _measure(self, version: int) -> None:
        """Evaluate a version at the moment at which it is made; that takes no virtual time."""
        worker = next(iter(self.workers.values()))
        self.evaluate(worker, version)
        found = self.metrics.get("accuracy", 0.0)
        if self.until_accuracy and found >= self.until_accuracy:
            reason = f"version {version} has accuracy {found:.4f}, wanted was {self.until_accuracy:g}"
            # Not now: the coordinator is in the middle of a step.
            self.queue.at(self.queue.now, self._reached, reason)

    def _reached(self, reason: str) -> None:
        if self.coordinator.state.stopped is None:
            self.stop(reason, success=True, cause="done")

    # Outputs

    def _route(self, outputs: list[Output]) -> None:
        # A timing-only run that writes no log needs no records.
        read = self.folder.record or not self.store.empty or self.first_grant is None
        facts: list[inputs.Executed] = []
        for output in outputs:
            if isinstance(output, Send):
                notice = output.notice
                # Workers ignore the fates of their commits, except that codecs take back what was dropped.
                if not isinstance(notice, protocol.Disposition) or (
                    self.store.remembers and notice.fate == "dropped"
                ):
                    self._post(self.workers[output.worker], output.incarnation, notice)
            elif isinstance(output, Record) and read:
                facts += self._read(output)
        last = outputs[-1] if outputs else None
        if isinstance(last, Record) and isinstance(last.entry, Checkpoint):
            self.save(last)
        # Telling takes no time.
        for fact in facts:
            self.give(fact)
        if read:
            self.store.admit_waiting()
        due = self.coordinator.due
        if due != self._timer:
            self._timer = due
            if due is not None:
                self.queue.at(due - self._before, self.tick)

    def _read(self, record: Record) -> list[inputs.Executed]:
        """Write the entry and execute it. Return the fact about a version that it makes."""
        entry, facts = record.entry, list[inputs.Executed]()
        if self.folder.record:
            self.folder.append(record)
        if not self.store.empty:
            self.store.execute(entry)
            if isinstance(entry, Apply | Install):
                facts.append(self.store.fact)
        if self.first_grant is None and isinstance(entry, Grant):
            self.first_grant = self.now
        elif self.every and isinstance(entry, Apply) and entry.version % self.every == 0:
            self._measure(entry.version)
        return facts

    def _post(self, worker: Worker, incarnation: int, notice: protocol.Event) -> None:
        """Send a notice to the process of that incarnation, if it is alive."""
        if self.terms.ticket_timeout and isinstance(notice, protocol.Grant):
            self.tick_after(self.terms.ticket_timeout)
        if worker.incarnation != incarnation or not worker.alive:
            return
        if worker.down.immediate():
            self._inbox.append((worker, worker.life, notice))
        else:
            worker.down.send(worker.receive, worker.life, notice)

    def conclude(self) -> None:
        """Write summary and weights. Call once `run` has returned."""
        self.folder.conclude(self.coordinator, self.store, self.metrics, self.first_grant)
