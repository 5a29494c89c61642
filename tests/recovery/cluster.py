"""Server 0 with its coordinator, the other shards, and a folder of checkpoints: what they do, and how they go on.

The coordinator, the choice of a checkpoint, and what is written and read are the servers' own code. Server 0 and its
shard are one process.
"""

from collections.abc import Mapping

from pslab.verify.invariants import expect
from pslab.verify.schedule import ChoiceSource
from psserver.checkpoint import CheckpointError, Manifest, check_same_job, coordinator_of, name_of, shards_of
from psserver.coordinator import Coordinator, Declined, Input, JobTerms, Output, Record, Send, inputs
from psserver.coordinator.terms import Proposal
from psserver.policies import build
from psserver.shard import ShardState
from pswire.decisions import entries
from pswire.generations import Generation, follows
from pswire.protocol import received
from psworker.engine import Event, Request
from tests.recovery.settings import Job, may_have
from tests.recovery.shard import OPTIMIZER, Shard, chained, plan_of, rows_of
from tests.recovery.storage import Due, Folder, Memory
from tests.recovery.worker import Member, Worker

TIMEOUT = 3.0


class Refused(Exception):
    """No checkpoint is left of those that there were: server 0 says so, and does not begin."""


class Cluster:
    """`log`: what goes on; `void`: what was decided and undone. `coordinator`: None while server 0 is dead."""

    def __init__(self, job: Job, choices: ChoiceSource, seed: int) -> None:
        self.job, self.choices, self.now = job, choices, 0.0
        self.storage: Folder | Memory = Folder(seed) if job.disk else Memory()
        self.workers = [Worker(f"w{n}", job.batches) for n in range(job.setting.workers)]
        self.by_name: Mapping[str, Worker] = {worker.name: worker for worker in self.workers}
        self.log: list[Record] = []
        self.void: list[Record] = []
        # Behind each entry of the log, what every shard has to have.
        self.chains: list[int] = []
        # Entries that a killed process leaves, and a machine without power.
        self.flushed = self.synced = 0
        self.coordinator: Coordinator | None = None
        # When the job began, less the time in which nobody decided.
        self.origin = 0.0
        self.name, self.generation = "", -1
        self.shards = [Shard(server, job.servers) for server in range(job.servers)]
        # What a shard is given that begins to follow: so many entries, and the states behind them.
        self.kept: tuple[int, Mapping[int, ShardState] | None] = (0, None)
        # Servers whose stream broke, which server 0 has yet to notice.
        self.lost: set[int] = set()
        self.due: Due | None = None
        self.next_due: Due | None = None
        # Entry of the newest checkpoint that was complete and belongs to the log.
        self.complete = -1
        # Names of those that a disk did not take.
        self.failed: set[str] = set()
        self.rolled_back = 0

    # Server 0

    def give(self, given: Input) -> list[Output]:
        """Give the coordinator an input now."""
        assert self.coordinator is not None
        return self.coordinator.take(given, self.now - self.origin)

    @property
    def servers(self) -> int:
        return len(self.shards)

    def terms(self) -> JobTerms:
        return JobTerms(
            self.name,
            servers=self.servers,
            workers=self.job.setting.workers,
            worker_timeout=TIMEOUT,
            checkpoint_versions=self.job.every,
            generation=self.generation,
            regather=2 * TIMEOUT,
        )

    def begin(self) -> None:
        """As `psserver.service.store.resume_point` has it. Raises CheckpointError, server 0 as dead as before, and
        Refused where nothing is left to go on from."""
        assert self.coordinator is None
        self.name = self.storage.name_job(self._logged_name())
        self.generation = Generation.named(self.name).number
        setting, terms, marks = self.job.setting, self.terms(), self._marks()
        policy = build(setting.policy, setting.knobs, setting.workers)
        found = None
        if self.log:
            try:
                found = self.storage.newest(lambda about: _lacks(marks, about))
            except CheckpointError as error:
                expect(not self.storage.trusted or self.complete < 0, f"what was complete is gone: {error}")
                raise Refused from error
        elif self.storage.written():
            expect(not self.storage.trusted, "a checkpoint was complete, and the name of its log is gone")
            raise Refused
        mark = -1 if found is None else found.manifest.entry
        expect(
            not self.storage.trusted or mark >= self.complete,
            f"it goes on behind entry {mark}, and the checkpoint of entry {self.complete} was complete",
        )
        if found is not None:
            self.storage.settle(found)
        void = len(self.log) - mark - 1
        self.cut_log(mark + 1)
        self.complete, self.lost = mark, set()
        self.shards[0].alive = True
        if found is None:
            self.coordinator = Coordinator(terms, policy)
            self.kept, self.origin = (0, None), self.now
            outputs = self.give(inputs.Opened())
            self.give(inputs.ModelProposed(Proposal("model", OPTIMIZER)))
        else:
            check_same_job(found.manifest, policy, OPTIMIZER, terms.workers, terms.seed)
            self.coordinator = coordinator_of(found, terms, policy)
            self.kept = (mark + 1, shards_of(found, plan_of(self.servers)))
            self.origin = self.now - self.coordinator.state.now
            outputs = self.give(inputs.Resumed(void))
        self.follow(self.shards[0])
        self.take(outputs)

    def _logged_name(self) -> str:
        named = (
            r.entry.job for r in reversed(self.log) if isinstance(r.entry, entries.Job | entries.Restore)
        )
        return next(named, "")

    def _marks(self) -> dict[int, tuple[str, int]]:
        """As `psserver.checkpoint.rewind.LogIndex`: entry -> job and version."""
        marks: dict[int, tuple[str, int]] = {}
        name = ""
        for record in self.log:
            if isinstance(record.entry, entries.Job | entries.Restore):
                name = record.entry.job
            elif isinstance(record.entry, entries.Checkpoint):
                marks[record.index] = (name, record.entry.version)
        return marks

    def cut_log(self, kept: int) -> None:
        """What follows on so many entries is void."""
        self.rolled_back += sum(isinstance(record.entry, entries.Apply) for record in self.log[kept:])
        self.void += self.log[kept:]
        del self.log[kept:], self.chains[kept:]
        self.flushed = self.synced = kept

    def lose_log(self) -> None:
        """The machine had no power before the log's name was on the disk."""
        self.cut_log(0)

    def end(self, *, powerless: bool = False) -> None:
        """Its process is gone, and with it what it had not given to the system, or the machine to its disk."""
        if self.coordinator is not None:
            first = self.synced if powerless else self.flushed
            self.cut_log(first + self.choices.pick(len(self.log) - first + 1))
        self.coordinator, self.due, self.next_due = None, None, None
        for worker in self.workers:
            worker.break_exchange()
            worker.hang_up()
            worker.unnoticed = None

    def let_go(self) -> None:
        """It has noticed that a server is lost, and begins again in the same process: a checkpoint that all have
        written is completed, any other given up. Raises as `begin`."""
        if self.due is not None and not self.due.missing:
            self.write()
        self.flushed = len(self.log)
        self.end()
        self.shards[0].forget()
        self.shards[0].saves.clear()
        self.begin()

    def take(self, outputs: list[Output], diverted: str = "") -> list[Event]:
        """Outputs take effect. What is told to the worker `diverted` is returned instead: an exchange brings it."""
        answer, departed = [], False
        for output in outputs:
            if isinstance(output, Record):
                self.log.append(output)
                self.chains.append(chained(self.chains[-1] if self.chains else 0, output.entry))
                self.shards[0].execute(output)
                departed = departed or isinstance(output.entry, entries.Leave)
            elif isinstance(output, Send):
                self.flushed = len(self.log)
                worker = self.by_name[output.worker]
                if worker.member == (self.name, output.incarnation):
                    event = received(output.notice, self.now)
                    if output.worker == diverted:
                        answer.append(event)
                    elif worker.connected:
                        worker.down.append(event)
        if outputs and isinstance(outputs[-1], Record) and isinstance(outputs[-1].entry, entries.Checkpoint):
            self._order(outputs[-1])
        if departed:
            self._close_streams()
        return answer

    def _close_streams(self) -> None:
        """Server 0 closes the streams of those that are no members any more."""
        for worker in self.workers:
            if worker.connected and self.refuses(worker.name, worker.member):
                worker.hang_up()

    def refuses(self, name: str, member: Member | None) -> bool:
        """It is no member of this generation."""
        assert self.coordinator is not None
        found = self.coordinator.state.roster.present.get(name)
        return found is None or member != (self.name, found.incarnation)

    # The other servers

    def follow(self, shard: Shard) -> None:
        """It is given what server 0 began from."""
        kept, states = self.kept
        state = None if states is None else states[shard.server]
        shard.follow(self.name, kept, state)
        if kept:
            expect(shard.chain == self.chains[kept - 1], f"server {shard.server} is given another state")
            rows = rows_of(self.log[:kept], shard.plan, shard.server)
            expect(shard.rows == rows, f"server {shard.server} is given the rows {shard.rows}, not {rows}")

    def _linked(self, shard: Shard) -> bool:
        there = shard.alive and shard.reachable and shard.server not in self.lost
        return self.coordinator is not None and there

    def can_follow(self, shard: Shard) -> bool:
        """Server 0 reaches it, and it waits for orders."""
        return self._linked(shard) and shard.job != self.name

    def orders(self, shard: Shard) -> int:
        """How many are under way to it."""
        following = self._linked(shard) and shard.job == self.name
        return len(self.log) - shard.executed if following else 0

    def execute(self, shard: Shard, count: int) -> None:
        for record in self.log[shard.executed : shard.executed + count]:
            shard.execute(record)

    def lose(self, shard: Shard) -> None:
        """Its stream breaks: it forgets what it holds, and server 0 will notice."""
        if shard.job == self.name and self.coordinator is not None:
            self.lost.add(shard.server)
        shard.forget()

    def heal(self) -> None:
        """Whatever was cut off can be reached again."""
        for worker in self.workers:
            worker.reachable = True
        for shard in self.shards:
            shard.reachable = True

    def restart_all(self, servers: int) -> None:
        """Every server is a new process, as many as there are to be from now on, as far as the policy allows. Server 0
        is yet to begin."""
        servers = servers if may_have(self.job.setting, servers) else 1
        self.shards, self.lost = [Shard(server, servers) for server in range(servers)], set()
        self.shards[0].alive = False

    # Checkpoints

    def _order(self, record: Record) -> None:
        assert self.coordinator is not None
        terms, policy = self.coordinator.terms, self.coordinator.policy
        missing = set(range(self.servers))
        due = Due(record, self.coordinator.saved(), terms, policy, plan_of(self.servers), missing)
        if self.due is None:
            self.due = due
        else:
            self.next_due = due

    def write_part(self, shard: Shard) -> None:
        """The part whose turn it is. Raises PowerLoss."""
        (entry, job, state), shard.saves = shard.saves[0], shard.saves[1:]
        name = name_of(entry, job)
        try:
            files = self.storage.put_part(name, state)
        except CheckpointError:
            self.failed.add(name)
            self._settle(name)
            return
        for due in (self.due, self.next_due):
            if due is not None and due.name == name:
                due.files |= files
                due.missing.discard(shard.server)

    def _settle(self, name: str) -> None:
        """That checkpoint is complete, or given up."""
        if self.next_due is not None and self.next_due.name == name:
            self.next_due = None
        if self.due is not None and self.due.name == name:
            self.due, self.next_due = self.next_due, None

    def write(self) -> None:
        """Server 0's next step of writing the checkpoint that is due. Raises PowerLoss."""
        due = self.due
        if due is None or self.coordinator is None:
            return
        try:
            if not due.begun:
                due.files |= self.storage.put_coordinator(due)
                due.begun = True
            elif due.missing:
                if any(self._passed_over(self.shards[server], due) for server in due.missing):
                    self._settle(due.name)
            else:
                self.flushed = self.synced = len(self.log)
                self.storage.complete(due)
                self.complete = max(self.complete, due.record.index)
                self._settle(due.name)
        except CheckpointError:
            self.failed.add(due.name)
            self._settle(due.name)

    def _passed_over(self, shard: Shard, due: Due) -> bool:
        """It had a newer one to write, and will not write its part of this one."""
        waits = any(entry == due.record.index for entry, _, _ in shard.saves)
        return shard.job == self.name and shard.executed > due.record.index and not waits

    # Workers

    def open(self, worker: Worker) -> None:
        """It joins, and its stream stands. Nothing happens while it cannot reach server 0."""
        coordinator = self.coordinator
        if coordinator is None or not worker.reachable:
            return
        if (
            worker.member is not None
            and worker.member[0] != self.name
            and not follows(self.name, worker.member[0])
        ):
            # Servers of another job: it is refused, and its supervisor starts it again.
            worker.restart()
        outputs = self.give(inputs.JoinAsked(worker.name, worker.process, worker.rank))
        self.take(outputs)
        if refused := [each for each in outputs if isinstance(each, Declined)]:
            expect(coordinator.state.stopped is not None, f"{worker.name} may not join: {refused}")
            return
        member = coordinator.state.roster.present[worker.name]
        next_batch = coordinator.state.roster.tally(worker.name).next_batch
        worker.joined((self.name, member.incarnation), next_batch)
        self.take(self.give(inputs.Connected(worker.name, member.incarnation, worker.process)))

    def cut(self, worker: Worker, *, noticed: bool = True) -> None:
        """Its stream breaks; server 0 notices at once, or later."""
        if worker.connected:
            worker.hang_up()
            worker.unnoticed = worker.member
        if worker.unnoticed is not None and noticed and self.coordinator is not None:
            member, worker.unnoticed = worker.unnoticed, None
            self.take(self.give(inputs.Disconnected(worker.name, member[1])))

    def deliver(self, name: str, member: Member, request: Request, diverted: str = "") -> list[Event]:
        """A request arrives, of a member of this generation: others are refused whatever they ask."""
        assert self.coordinator is not None and member[0] == self.name
        return self.take(self.give(inputs.Requested(name, member[1], request)), diverted)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.coordinator is not None:
            self.take(self.give(inputs.Tick()))


def _lacks(marks: Mapping[int, tuple[str, int]], about: Manifest) -> str | None:
    fits = marks.get(about.entry) == (about.job, about.version)
    return None if fits else "is none of this log"
