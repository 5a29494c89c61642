"""Servers of a job with replicas, whole: the protocol's shell, the coordinator and its copy, shards, checkpoints.

The shell, the coordinator, what its inputs and the protocol's messages look like as bytes, and what a copy for a server
that comes back is made of are the servers' own code. Streams between servers, disks, clocks and processes are not.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pslab.verify.invariants import InvariantViolation, expect
from pslab.verify.schedule import ChoiceSource
from psserver.coordinator import (
    Coordinator,
    Declined,
    Input,
    JobState,
    JobTerms,
    Output,
    Record,
    Send,
    inputs,
)
from psserver.coordinator.saving import reopen
from psserver.coordinator.terms import Extent, Proposal
from psserver.policies import build
from psserver.replication import Config, Disk, Member, Replica, begin, first_config, restart
from psserver.service.replicas import inputs as noting
from psserver.service.replicas.inputs import Configured, Held, Noted
from psserver.service.replicas.logs import holders
from psserver.shard import ShardState
from pswire.decisions import entries
from pswire.generations import Generation
from pswire.protocol import received
from psworker.engine import Request
from tests.recovery.extras import NOTHING, Extras
from tests.recovery.holding import CLOCK, Holding, read
from tests.recovery.network import Copy, Network, Sent, Way
from tests.recovery.parts import Orders, Part
from tests.recovery.settings import Job
from tests.recovery.shard import OPTIMIZER, chained
from tests.recovery.worker import Exchange, Worker
from tests.recovery.worker import Member as WorkersMember

TIMEOUT = 3.0
HOLDERS = holders(0)


class PowerLoss(Exception):
    """The server is gone, in the middle of what it did."""


@dataclass
class Saved:
    """A checkpoint: behind that entry. `shards`, `savers`: by part; it counts when it has all of them, and the file of
    the server that led."""

    entry: int
    coordinator: dict[str, Any] | None = None
    shards: dict[int, ShardState] = field(default_factory=dict)
    savers: dict[int, tuple[int, int]] = field(default_factory=dict)


class Server(Holding):
    """The process of server `number`, and what is on its disk. Its own log is the job's, as `replicas.copy.Copy` is.

    `parts`: its logs of the other parts of the model; `orders`: to those. `ahead`: seconds by which its clock is ahead
    of others'.
    """

    def __init__(self, cluster: "Copies", number: int) -> None:
        super().__init__(cluster, number, 0)
        self.process = self
        self.alive = True
        self.stalled = False
        self.refuses_promises = False
        self.ahead = 0.0
        self.generation, self.incarnation = 0, 0
        first = first_config(HOLDERS)
        self.disk = Disk(first.epoch, first)
        self._run(begin(number, cluster.count, first), formed=False)
        self.parts = [Part(self, part) for part in range(1, cluster.parts)]
        # Of all parts.
        self.logs: list[Holding] = [self, *self.parts]

    def _run(self, replica: Replica, *, formed: bool) -> None:
        self.hold(replica, formed=formed)
        self.coordinator: Coordinator | None = None
        # What the other copy does not have yet; and what is to happen when an input is noted.
        self.notes: list[Noted] = []
        self.noted: Callable[[], None] = lambda: None
        self.deposed = False
        # Worker -> whose stream ends here; and when who has not come yet is missed.
        self.sessions: dict[str, int] = {}
        self.missed: tuple[float, list[tuple[str, int]]] | None = None
        self.heard: float | None = None
        self.origin = 0.0
        self.orders = [Orders(self, part) for part in range(1, self.cluster.parts)]

    @property
    def time(self) -> float:
        return self.cluster.now + self.ahead

    @property
    def up(self) -> bool:
        return self.alive and not self.stalled

    def log(self, part: int) -> Holding:
        return self.parts[part - 1] if part else self

    def begin_again(self) -> None:
        """A process of the same server: another incarnation, with nothing but what is on its disk."""
        self.incarnation += 1
        holds = self.number in HOLDERS
        replica = restart(self.number, self.cluster.count, self.incarnation, holds, self.disk)
        self.alive = True
        self._run(replica, formed=True)
        for part in self.parts:
            part.begin_again()

    def new_generation(self, first: Config, saved: Saved) -> None:
        self.generation, self.incarnation, self.disk = self.cluster.generation, 0, Disk(first.epoch, first)
        self.alive, self.stalled, self.refuses_promises = True, False, False
        holds = self.number in HOLDERS
        member = any(each.server == self.number for each in first.members)
        made = begin if member or not holds else None
        count = self.cluster.count
        replica = (
            begin(self.number, count, first) if made else restart(self.number, count, 0, True, self.disk)
        )
        self._run(replica, formed=False)
        for part in self.parts:
            part.begin(saved.entry + 1, saved.shards[part.part])

    # Leading

    def job_time(self) -> float:
        """The job's clock, as this server goes on with it."""
        return self.time + self.origin

    def lead_first(self, saved: Saved | None) -> None:
        """Make the job, or go on from a checkpoint."""
        self.leads = True
        self.coordinator = self.cluster.new_coordinator()
        self.offer(b"b", lambda: None)
        if saved is None:
            self.shard.follow(self.cluster.name, 0, None)
            self.step(lambda: self.give(inputs.Opened()))
            return
        assert saved.coordinator is not None
        state = JobState.read(json.loads(json.dumps(saved.coordinator)))
        reopen(state, self.coordinator.policy)
        self.coordinator = self.cluster.new_coordinator(state)
        self.origin = state.now - self.time
        self.shard.follow(self.cluster.name, saved.entry + 1, saved.shards[0])
        self.step(lambda: self.give(inputs.Resumed(self.cluster.undone)))

    def give(self, given: Input) -> list[Output]:
        """Give the coordinator an input now."""
        assert self.coordinator is not None
        now = self.job_time()
        self.notes.append((now, given))
        self.noted()
        return self.coordinator.take(given, now)

    def step(
        self,
        decide: Callable[[], list[Output]],
        first: Callable[[], None] = lambda: None,
        exchange: "Exchange | None" = None,
        requested: bool = False,
    ) -> None:
        """Decide; what follows is let go when all copies hold the input, behind `first`. `exchange`: brings what its
        worker is told. `requested`: another copy gets the input before it is decided."""
        outputs, releases = list[Output](), list[Callable[[], None]]()
        sent, saver = False, self.saver()

        def send() -> None:
            nonlocal sent
            sent = True
            held = [Held([each.executed for each in self.orders])] if self.orders else []
            notes, self.notes = self.notes, []
            data = noting.encode([*notes, *held], self.job_time())

            def held_by_all() -> None:
                for release in releases:
                    release()

            self.offer(b"i%d " % saver + data, held_by_all)

        if requested and len(self.shell.replica.disk.config.members) > 1:
            self.noted = send
        try:
            outputs = decide()
        finally:
            self.noted = lambda: None
            state = self._captured(outputs)

            def release() -> None:
                first()
                self._release(outputs, state, saver, exchange)

            releases.append(release)
            if not sent:
                send()

    def _captured(self, outputs: list[Output]) -> dict[str, Any] | None:
        assert self.coordinator is not None
        last = outputs[-1] if outputs else None
        ordered = isinstance(last, Record) and isinstance(last.entry, entries.Checkpoint)
        return self.coordinator.saved() if ordered else None

    def _release(
        self,
        outputs: list[Output],
        state: dict[str, Any] | None,
        saver: int,
        exchange: "Exchange | None" = None,
    ) -> None:
        for output in outputs:
            if isinstance(output, Record):
                self._execute(output, state if output is outputs[-1] else None, saver)
            elif isinstance(output, Send) and self.leads:
                self.cluster.tell(self, output, exchange)
        if exchange is not None:
            exchange.arrived, exchange.waits = bool(exchange.answer), not exchange.answer

    def _execute(self, record: Record, state: dict[str, Any] | None, saver: int) -> None:
        self.cluster.happens(self, record)
        self.shard.execute(record)
        self.shard.saves.clear()
        if isinstance(record.entry, entries.Checkpoint) and state is not None:
            if self.saves(saver):
                self.cluster.save(record.index, 0, self.shard.state(), self)
            if self.leads:
                self.cluster.complete(record.index, state)
        for orders in self.orders:
            orders.send(record)
        if isinstance(record.entry, entries.Apply):
            self._flip(record.entry.version)
            self.compare(record.entry.version)

    # Comparing

    def _flip(self, version: int) -> None:
        if self.cluster.flips and self.cluster.choices.pick(8) == 7:
            self.cluster.flips -= 1
            self.cluster.flipped = version
            self.shard.chain ^= 1

    def look(self) -> None:
        replica = self.shell.replica
        if self.leads and replica.disk.config.primary != self.number:
            self.deposed = True

    def _attempt(self) -> None:
        if (
            self.leads
            and self.wanted is not None
            and not self.held
            and self.coordinator
            and not self.notes
            and self.shard.executed
        ):
            to, self.wanted = self.wanted, None
            state = json.dumps(self.coordinator.saved())
            kept = [list(each.kept) for each in self.orders]
            about = state, kept, self.job_time()
            copy = Copy(self.executed, self.shell.replica.synced, about, self.shard.state())
            self.cluster.network.post(Way(self.number, to), Sent(copy=copy))

    # Following

    @property
    def _begun(self) -> bool:
        return self.coordinator is not None

    def _take_up(self, copy: Copy) -> None:
        state, kept, now = copy.about
        known = JobState.read(json.loads(state))
        self.coordinator = self.cluster.new_coordinator(known)
        self.shard.follow(self.cluster.name, known.entries, copy.shard)
        for orders, records in zip(self.orders, kept, strict=True):
            orders.kept.extend(records)
        self._hear(now)

    def _hear(self, now: float) -> None:
        """Take the job's time from another server that leads."""
        self.heard, self.origin = now, now - self.time

    def follow(self, most: int) -> None:
        super().follow(most)
        for part in self.parts:
            part.follow(most)

    def _take_again(self, body: bytes) -> None:
        kind, rest = body[:1], body[1:]
        if kind == b"b":
            self.coordinator = self.cluster.new_coordinator()
            self.shard.follow(self.cluster.name, 0, None)
        elif kind == b"p":
            if not self.shard.refuses(int(rest)):
                self.shard.push(int(rest))
        else:
            assert self.coordinator is not None
            saver, _, data = rest.partition(b" ")
            noted, now = noting.decode(data)
            self._hear(now)
            outputs = list[Output]()
            for each in noted:
                if isinstance(each, Held):
                    for orders, count in zip(self.orders, each.entries, strict=True):
                        orders.hold(count)
                elif not isinstance(each, Configured):
                    outputs += self.coordinator.take(each[1], each[0])
            state = self._captured(outputs)
            self._release(outputs, state, int(saver))

    def _succeed(self) -> None:
        self.activation = None
        coordinator = self.coordinator
        if coordinator is None:
            # The first primary was lost before the log began.
            self.ended = True
            return
        self.leads, self.notes = True, []
        self.cluster.count_of["takeover"] += 1
        if self.heard is not None:
            # Nobody could decide since then, so the job stood still.
            self._hear(self.heard)
        if not coordinator.state.entries:
            self.step(lambda: self.give(inputs.Opened()))
        present = [(each.worker, each.incarnation) for each in coordinator.state.roster.present.values()]
        terms = coordinator.terms
        self.missed = (self.time + terms.worker_timeout - terms.grace, present)

    # Time

    def tick(self) -> None:
        for log in self.logs:
            log.shell.tick()
            log.look()
        if self.leads and not self.deposed:
            for orders in self.orders:
                orders.look()

    def job_tick(self) -> None:
        """Let the job's time pass, and note who has not come since this server leads."""
        coordinator = self.coordinator
        if not self.leads or coordinator is None or self.deposed:
            return
        if self.missed is not None and self.time >= self.missed[0]:
            present, self.missed = self.missed[1], None
            for worker, incarnation in present:
                if self.sessions.get(worker) != incarnation:
                    self.disconnect(worker, incarnation)
        self.step(lambda: self.give(inputs.Tick()))

    def disconnect(self, worker: str, incarnation: int) -> None:
        coordinator = self.coordinator
        if self.leads and coordinator is not None:
            if self.sessions.get(worker) == incarnation:
                del self.sessions[worker]
            self.step(lambda: self.give(inputs.Disconnected(worker, incarnation)))


class Copies:
    """All servers, what they promised, and the workers. `log`: what any of them let go, which nothing undoes."""

    def __init__(
        self, job: Job, choices: ChoiceSource, servers: int, *, flips: int = 0, extras: Extras = NOTHING
    ) -> None:
        self.extras = extras
        self.job, self.choices, self.count, self.now = job, choices, servers, 0.0
        # Of bits: how many may flip, and the version that one flipped in. The newest version that copies compared.
        self.parts = job.servers
        self.flips, self.flipped, self.compared, self.chaos = flips, -1, -1, True
        self.generation, self.undone, self.rolled_back = 0, 0, 0
        self.name = Generation("job", 0).name
        self.workers = [Worker(f"w{n}", job.batches) for n in range(job.setting.workers)]
        self.by_name = {worker.name: worker for worker in self.workers}
        self.log: list[Record] = []
        self.void: list[Record] = []
        self.chains: list[int] = []
        # Whether a server that leads has let the end go.
        self.over = False
        # By entry; some are not complete.
        self.saved: dict[int, Saved] = {}
        self.network = Network(lambda server: self.servers[server].alive, choices.pick)
        # The configurations on all disks by part and epoch, and the newest of each part.
        self.configs: dict[tuple[int, int], Config] = {}
        # Whether a server died, or a configuration came, since `lost` looked.
        self._changed = True
        self.newest = [first_config(holders(part)) for part in range(self.parts)]
        self.epochs: set[tuple[int, int]] = set()
        # How many streams of orders there were.
        self.begun = 0
        self.count_of: Counter[str] = Counter()
        # The server where a worker's stream ends, by the worker's name.
        self.at: dict[str, int] = {}
        CLOCK.later.clear()
        self.servers = [Server(self, number) for number in range(servers)]
        self.acts(self.servers[0], lambda: self.servers[0].lead_first(None))

    def new_coordinator(self, state: JobState | None = None) -> Coordinator:
        setting = self.job.setting
        terms = JobTerms(
            self.name,
            servers=self.parts,
            workers=setting.workers,
            worker_timeout=TIMEOUT,
            checkpoint_versions=self.job.every,
            generation=self.generation,
            regather=2 * TIMEOUT,
            plan=self.extras.plan,
            adapt=self.extras.adapt,
        )
        policy = build(setting.policy, setting.knobs, setting.workers)
        return Coordinator(terms, policy, state)

    # Promises

    def happens(self, server: Server, record: Record) -> None:
        """A copy executes an entry: the same for all of them, and for ever."""
        if record.index == len(self.log):
            self.log.append(record)
            self.over = self.over or isinstance(record.entry, entries.Stop)
            self.count_of["policy changed"] += isinstance(record.entry, entries.Policy)
            self.count_of["elements kept back"] += isinstance(record.entry, entries.Nonfinite)
            self.chains.append(chained(self.chains[-1] if self.chains else 0, record.entry))
        else:
            expect(record.index < len(self.log), f"entry {record.index} comes behind {len(self.log)} of them")
            known = self.log[record.index]
            # Numbers that are none are equal as text.
            if repr(known) != repr(record):
                raise InvariantViolation(f"server {server.number} decides {record}, and {known} was told")

    def configured(self, part: int, config: Config) -> None:
        known = self.configs.setdefault((part, config.epoch), config)
        self._changed = True
        if config.epoch > self.newest[part].epoch:
            self.newest[part] = config
        expect(known == config, f"two configurations of epoch {config.epoch} of part {part}")

    def activated(self, part: int, config: Config) -> None:
        expect((part, config.epoch) not in self.epochs, f"epoch {config.epoch} of part {part} begins twice")
        self.epochs.add((part, config.epoch))

    def save(self, entry: int, part: int, shard: ShardState, server: "Server") -> None:
        """A part of a checkpoint is on the disk. One entry's part has one saver."""
        saved = self.saved.setdefault(entry, Saved(entry))
        expect(
            part not in saved.savers,
            f"server {server.number} saves part {part} for entry {entry}, and server {saved.savers.get(part)} did",
        )
        saved.savers[part] = server.number, server.incarnation
        saved.shards[part] = shard
        self.count_of["part saved"] += 1

    def complete(self, entry: int, coordinator: dict[str, Any]) -> None:
        """The server that leads has its own file of a checkpoint on the disk."""
        self.saved.setdefault(entry, Saved(entry)).coordinator = coordinator

    # Servers

    def acts(self, server: Server, act: Callable[[], object]) -> None:
        """Have a server do something; it may die in the middle."""
        CLOCK.now = server.time
        try:
            act()
            server.look()
        except PowerLoss:
            self.count_of["power lost between two outputs"] += 1
            self.kill(server)
            return
        if server.alive and (server.deposed or any(log.ended for log in server.logs)):
            self.count_of["replaced" if server.deposed else "begins again"] += 1
            self.kill(server)

    def may_die(self, number: int) -> None:
        if self.chaos and self.choices.pick(1024) == 1023 and self.copies_left(without=number):
            raise PowerLoss

    def kill(self, server: Server) -> None:
        server.alive, self._changed = False, True
        for worker in self.workers:
            if self.at.get(worker.name) == server.number:
                self.hang_up(worker, told=False)
        self.network.die(server.number, self.count)

    def carry(self, way: Way) -> None:
        """The next thing of a stream arrives."""
        server, sent = self.servers[way.to], self.network.take(way, late=self.chaos)
        if sent is not None and server.alive:
            self.acts(server, lambda: self._arrives(server, way.sender, sent))

    def _arrives(self, server: Server, sender: int, sent: Sent) -> None:
        log = server.log(sent.part)
        if sent.broke:
            for each in server.logs:
                each.links.broke(sender)
                each.shell.broke(sender)
                each.shell.tick()
            for orders in server.orders:
                orders.broke(sender)
        elif sent.orders is not None:
            assert isinstance(log, Part)
            log.take(sender, *sent.orders)
        elif sent.executed is not None:
            server.orders[sent.part - 1].done(*sent.executed)
        elif sent.ended:
            server.orders[sent.part - 1].end(sent.ended)
        else:
            for each in server.logs:
                each.shell.watch.alive(sender, server.time)
            if sent.copy is not None:
                log.shell.watch.led(sender, server.time)
                log.arrives(sender, sent.copy)
            elif sent.digest is not None:
                self._compared(log, sender, *sent.digest)
            else:
                for item, body in sent.bodies.items():
                    log.shell.hold(item, body)
                assert sent.message is not None
                part, message = read(sent.message, sent.part)
                server.log(part).shell.receive(sender, message)

    def _compared(
        self, log: Holding, sender: int, epoch: int, incarnation: int, version: int, digest: bytes
    ) -> None:
        replica, member = log.shell.replica, Member(sender, incarnation)
        if replica.leads and epoch == replica.synced and member in replica.disk.config.members:
            if log.part == 0:
                self.compared = version
            found = log.comparison.theirs(member, version, digest)
            if found is not None:
                log.differ(found)

    def lost(self) -> bool:
        """Whether no copy in sync is left of a part."""
        before, self._changed = self._changed, False
        return before and not self.copies_left()

    def copies_left(self, without: int = -1) -> bool:
        """Whether of each part a copy in sync is left that may lead, if that server dies."""
        return all(
            any(
                each.alive and each.number != without and each.log(part).shell.replica.in_sync(newest)
                for each in self.servers
            )
            for part, newest in enumerate(self.newest)
        )

    def serving(self, part: int) -> list[Holding]:
        """The copies of a part that take payloads, as they know."""
        logs = [each.log(part) for each in self.servers if each.up]
        return [log for log in logs if log.leads and not log.ended]

    def resume(self) -> bool:
        """Both copies are lost: all servers begin again from the newest checkpoint. False: there is none."""
        complete = [
            each for each in self.saved.values() if each.coordinator and len(each.shards) == self.parts
        ]
        if not complete:
            return False
        saved = max(complete, key=lambda each: each.entry)
        self.saved = {saved.entry: saved}
        self.count_of["resumed from a checkpoint"] += 1
        self.generation += 1
        self.name = Generation("job", self.generation).name
        undone = self.log[saved.entry + 1 :]
        self.undone = len(undone)
        self.rolled_back += sum(isinstance(record.entry, entries.Apply) for record in undone)
        self.void += undone
        del self.log[saved.entry + 1 :], self.chains[saved.entry + 1 :]
        self.over = False
        self.configs, self.epochs, self._changed = {}, set(), True
        self.network.clear()
        CLOCK.later.clear()
        for worker in self.workers:
            self.hang_up(worker, told=False)
        self.newest = [first_config(holders(part)) for part in range(self.parts)]
        self.newest[0] = first_config(HOLDERS[:1])
        for server in self.servers:
            server.new_generation(self.newest[0], saved)
        self.acts(self.servers[0], lambda: self.servers[0].lead_first(saved))
        return True

    # Workers

    def tell(self, server: Server, send: Send, exchange: Exchange | None) -> None:
        """What a worker is told, by its exchange if that waits, or by its stream."""
        worker, event = self.by_name[send.worker], received(send.notice, self.now)
        here = self.at.get(worker.name) == server.number
        if worker.member != (self.name, send.incarnation):
            return
        if exchange is None and worker.exchange is not None and worker.exchange.waits:
            exchange = worker.exchange
            exchange.arrived, exchange.waits = True, False
        if exchange is not None and worker.exchange is exchange:
            exchange.answer.append(event)
        elif here and worker.connected:
            worker.down.append(event)

    def open(self, worker: Worker, server: Server) -> None:
        """It joins whoever leads there, and its stream stands once that may be told."""
        coordinator = server.coordinator
        assert coordinator is not None
        members: list[int] = []
        process = worker.process
        if worker.member is not None and worker.member[0] != self.name and self.generation == 0:
            worker.restart()

        def decide() -> list[Output]:
            outputs = server.give(inputs.JoinAsked(worker.name, process, worker.rank))
            for answer in outputs:
                if isinstance(answer, Declined):
                    expect(coordinator.state.stopped is not None, f"{worker.name} may not join: {answer}")
                    return outputs
            member = coordinator.state.roster.present[worker.name]
            members.append(member.incarnation)
            server.sessions[worker.name] = member.incarnation
            if not coordinator.state.proposal.optimizer:
                server.give(inputs.ModelProposed(Proposal("model", OPTIMIZER)))
            connected = server.give(inputs.Connected(worker.name, member.incarnation, process))
            return [*outputs, *connected]

        def welcome() -> None:
            if not members:
                return
            if not worker.alive or worker.connected or worker.process != process:
                # The server notices later that nobody is there.
                return
            self.at[worker.name] = server.number
            if server.leads:
                # It goes to the other copy with the next input.
                server.give(inputs.DataSized(worker.name, Extent(1, worker.batches)))
            next_batch = coordinator.state.roster.tally(worker.name).next_batch
            worker.joined((self.name, members[0]), next_batch)

        self.acts(server, lambda: server.step(decide, welcome))

    def refuses(self, server: Server, name: str, member: WorkersMember | None) -> bool:
        """It is no member of this generation there."""
        assert server.coordinator is not None
        found = server.coordinator.state.roster.present.get(name)
        return found is None or member != (self.name, found.incarnation)

    def leader_of(self, worker: Worker) -> Server | None:
        """The server where its stream ends, if that does anything."""
        at = self.at.get(worker.name)
        server = None if at is None else self.servers[at]
        return server if server is not None and server.up and server.leads and worker.connected else None

    def deliver(self, name: str, member: WorkersMember, request: Request) -> None:
        """A request of a worker's stream arrives."""
        worker = self.by_name[name]
        server = self.leader_of(worker)
        assert server is not None
        self.handle(server, name, member, request)

    def handle(
        self,
        server: Server,
        name: str,
        member: WorkersMember,
        request: Request,
        exchange: Exchange | None = None,
    ) -> None:
        coordinator = server.coordinator
        assert coordinator is not None
        if self.refuses(server, name, member):
            return

        def decide() -> list[Output]:
            return server.give(inputs.Requested(name, member[1], request))

        self.acts(server, lambda: server.step(decide, exchange=exchange, requested=True))

    def notice(self, server: Server) -> None:
        """A server that leads notices streams that have ended, and ends those of workers that are no members any
        more."""
        if not (server.up and server.leads):
            return
        for worker in self.workers:
            if self.at.get(worker.name) == server.number and self.refuses(server, worker.name, worker.member):
                self.hang_up(worker, told=False)
        for name, incarnation in list(server.sessions.items()):
            worker = self.by_name[name]
            here = worker.connected and self.at.get(name) == server.number
            if not here or worker.member != (self.name, incarnation):
                self.acts(server, lambda name=name, known=incarnation: server.disconnect(name, known))  # type: ignore[misc]

    def hang_up(self, worker: Worker, *, told: bool) -> None:
        """Its stream breaks. `told`: the server notices at once."""
        at, member = self.at.pop(worker.name, None), worker.member
        worker.break_exchange()
        worker.hang_up()
        if at is not None and member is not None and told:
            server = self.servers[at]
            if server.up and server.leads:
                self.acts(server, lambda: server.disconnect(worker.name, member[1]))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for server in self.servers:
            if server.up:
                self.acts(server, server.tick)
        due, CLOCK.later = CLOCK.later, []
        for at, call in due:
            shell = getattr(call, "__self__", None)
            found = [
                each for each in self.servers if each.up and any(log.shell is shell for log in each.logs)
            ]
            if found and at > found[0].time:
                CLOCK.later.append((at, call))
            elif found:
                self.acts(found[0], call)
