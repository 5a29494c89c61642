"""A schedule: steps of a job and faults between them, drawn from choices; then no more faults, until the job is over.

Any process dies and comes back, any connection is cut, the network is divided, messages are late, come twice and in
another order, time passes, the machine loses its power, the disk fails.
"""

from collections import Counter
from collections.abc import Callable

from pslab.verify.invariants import InvariantViolation, expect
from pslab.verify.schedule import ChoiceSource
from psserver.checkpoint import CheckpointError, name_of
from psserver.coordinator import inputs
from pswire.decisions import entries
from psworker.engine import Request
from tests.checkpoint.fake_disk import FAULTS, PowerLoss
from tests.recovery.cluster import TIMEOUT, Cluster, Refused
from tests.recovery.loop import Loop
from tests.recovery.settings import Job
from tests.recovery.shard import Shard
from tests.recovery.storage import Folder
from tests.recovery.worker import Member, Worker

# Rounds without faults after which a job that is not over never will be.
PATIENCE = 400
# Of one worker in one of them.
MOVES = 2000


class Schedule:
    """`happened`: how often each fault did. `story`: what was done, in order; None where nobody reads it. `refused`: of
    all checkpoints that there were none was left, and the disk had lied."""

    def __init__(self, job: Job, choices: ChoiceSource, seed: int = 0, *, told: bool = False) -> None:
        self.job, self.cluster = job, Cluster(job, choices, seed)
        self.loop, self._pick = Loop(self.cluster), choices.pick
        self.happened: Counter[str] = Counter()
        self.story: list[str] | None = [] if told else None
        self.refused = False
        # The server that writes, if one does.
        self._writing = 0

    def run(self, steps: int) -> None:
        """Raises InvariantViolation where a promise is broken on the way, or the job does not end."""
        try:
            self._guarded(self._servers_come_back)
            for _ in range(steps):
                if self._stopped() and not self._lose_the_end():
                    break
                self._guarded(self._scene)
            self._calm()
        except Refused:
            self.refused = True
            self._fault("refused: no checkpoint is left")

    def _stopped(self) -> bool:
        coordinator = self.cluster.coordinator
        return coordinator is not None and coordinator.state.stopped is not None

    def _lose_the_end(self) -> bool:
        """The job is over, and nobody knows yet. Whether all is lost once more."""
        if self._pick(4) != 3:
            return False
        self._kill_all(powerless=False)
        return True

    def _step(self, what: str) -> None:
        if self.story is not None:
            self.story.append(what)

    def _fault(self, what: str) -> None:
        self.happened[what.partition(":")[0]] += 1
        self._step(what)

    # Scenes

    def _guarded(self, scene: Callable[[], object]) -> None:
        """What a disk does in the middle of a scene may be the end of a process."""
        try:
            scene()
        except PowerLoss:
            self._died_writing()
        storage = self.cluster.storage
        if isinstance(storage, Folder) and (fault := storage.noticed()):
            self._fault(f"disk {fault}")

    def _scene(self) -> None:
        pick, workers, shards = self._pick, self.cluster.workers, self.cluster.shards
        chance = pick(1024)
        worker, shard = workers[pick(len(workers))], shards[pick(len(shards))]
        if chance < 640:
            self._proceed(worker)
        elif chance < 780:
            self._serve(shard)
        elif chance < 860:
            self._save(shard)
        elif chance < 940:
            self._come_back()
        elif chance < 960:
            self.cluster.pass_time(0.2 * (1 + pick(4)))
        elif chance < 1008:
            self._disturb(worker)
        else:
            self._break(pick(24), worker, shard)

    def _proceed(self, worker: Worker) -> None:
        """Whatever comes next for this worker."""
        way, cluster = self._pick(3), self.cluster
        if not worker.alive:
            return
        exchange = worker.exchange
        if not worker.connected and cluster.coordinator is not None and worker.reachable and way < 2:
            self._step(f"{worker.name} joins")
            cluster.open(worker)
        elif exchange is not None and not exchange.arrived and way < 2:
            if cluster.coordinator is not None and worker.reachable:
                self._step(f"server 0 hears {exchange.commit} of {worker.name}, by an exchange")
                self.loop.arrive(worker)
        elif worker.up and way == 0:
            self._step(f"server 0 hears {worker.up[0]} of {worker.name}")
            self.loop.send(worker)
        elif worker.down and way == 1:
            self._step(f"{worker.name} hears {worker.down[0]}")
            self.loop.receive(worker)
        else:
            had = worker.engine.work
            if self.loop.move(worker):
                self._step(f"{worker.name} goes on: {had}")

    def _serve(self, shard: Shard) -> None:
        """Another server follows, or executes some of its orders."""
        if self.cluster.can_follow(shard):
            self._step(f"server {shard.server} follows")
            self.cluster.follow(shard)
        elif orders := self.cluster.orders(shard):
            count = 1 + self._pick(orders)
            self._step(f"server {shard.server} executes {count} orders")
            self.cluster.execute(shard, count)

    def _save(self, shard: Shard) -> None:
        """A server writes its part of a checkpoint, or server 0 takes its next step."""
        if shard.saves and self._pick(2):
            self._step(f"server {shard.server} writes its part")
            self._writing = shard.server
            self.cluster.write_part(shard)
        elif self.cluster.due is not None:
            self._step("server 0 writes")
            self._writing = 0
            self.cluster.write()

    def _disturb(self, worker: Worker) -> None:
        """What happens on any network on any day."""
        pick = self._pick
        match pick(6):
            case 0 if worker.connected:
                self._fault(f"connection cut: {worker.name}")
                self.cluster.cut(worker, noticed=bool(pick(2)))
            case 1 if worker.exchange is not None:
                self._fault(f"exchange cut: {worker.name}")
                worker.break_exchange()
            case 2 if worker.strays:
                member, request = worker.strays.popleft()
                self._arrives(worker.name, member, request, "message late")
            case 3 if worker.said:
                member, request = worker.said[pick(len(worker.said))]
                self._arrives(worker.name, member, request, "message twice")
            case 4 if pick(3) == 2:
                self._fault("a worker's timeout passes")
                self.cluster.pass_time(TIMEOUT)
            case _:
                self.cluster.pass_time(0.2)

    def _arrives(self, name: str, member: Member, request: Request, how: str) -> None:
        """Of one that is no member any more it is refused, wherever it goes."""
        cluster = self.cluster
        if cluster.coordinator is not None:
            self._fault(f"{how}: {request} of {name}")
            if not cluster.refuses(name, member):
                cluster.deliver(name, member, request)

    def _break(self, which: int, worker: Worker, shard: Shard) -> None:
        """What a job has to recover from."""
        pick = self._pick
        match which:
            case 0 | 1 | 2 if worker.alive:
                self._fault(f"kill worker: {worker.name}")
                self.cluster.cut(worker, noticed=bool(pick(2)))
                worker.break_exchange()
                worker.alive = False
            case 3 | 4:
                self._fault(f"partition worker: {worker.name}")
                self.cluster.cut(worker, noticed=bool(pick(2)))
                worker.reachable = False
            case 5 | 6 | 7 if shard.server:
                self._kill(shard)
            case 8 | 9 if shard.server:
                self._fault(f"partition shard: server {shard.server}")
                self.cluster.lose(shard)
                shard.reachable = False
            case 10 | 11 | 12:
                self._kill(self.cluster.shards[0])
            case 13:
                self._kill_all(powerless=False)
            case 14:
                self._kill_all(powerless=True)
            case 15:
                self._terminate()
            case _:
                self._break_disk()

    def _break_disk(self) -> None:
        storage, which = self.cluster.storage, self._pick(8)
        if not isinstance(storage, Folder):
            return
        if which == 7:
            if storage.flip():
                self._fault("disk flip")
        elif which == 6:
            storage.heal()
        else:
            storage.break_at(FAULTS[which % len(FAULTS)], self._pick(12))

    # Deaths and returns

    def _kill(self, shard: Shard) -> None:
        if not shard.alive:
            return
        self._fault(f"kill shard: server {shard.server}" if shard.server else "kill server 0")
        if shard.server == 0:
            self.cluster.end()
        else:
            self.cluster.lose(shard)
        shard.die()

    def _kill_all(self, *, powerless: bool) -> None:
        """Every server dies. They may come back in another number."""
        cluster = self.cluster
        self._fault("power loss" if powerless else "kill all servers")
        cluster.end(powerless=powerless)
        if powerless:
            if not cluster.storage.lose_power():
                cluster.lose_log()
            for worker in cluster.workers:
                worker.alive = False
        cluster.restart_all(1 + self._pick(3))

    def _terminate(self) -> None:
        """SIGTERM: all is saved, in the middle of a round perhaps, and everybody ends. All are started again."""
        cluster, coordinator = self.cluster, self.cluster.coordinator
        if coordinator is None or coordinator.state.stopped is not None:
            return
        self._fault("SIGTERM")
        cluster.take(cluster.give(inputs.SaveAsked()))
        self._catch_up()
        self._write_all()
        cluster.take(cluster.give(inputs.Stopping("SIGTERM", False, "SIGTERM")))
        cluster.end()
        for worker in cluster.workers:
            worker.alive = False
        cluster.restart_all(1 + self._pick(3))

    def _died_writing(self) -> None:
        """A process is gone in the middle of a write, or the machine."""
        storage = self.cluster.storage
        assert isinstance(storage, Folder)
        storage.noticed()
        if self._pick(2):
            self._fault("disk crash: power loss")
            self._kill_all(powerless=True)
        else:
            self._fault("disk crash: kill")
            self._kill(self.cluster.shards[self._writing])

    def _come_back(self) -> None:
        """Supervisors, back-off and the network do what they do. What is lost is noticed."""
        cluster = self.cluster
        match self._pick(4):
            case 0:
                for worker in cluster.workers:
                    if not worker.alive:
                        self._step(f"{worker.name} is started again")
                        worker.restart()
                        break
            case 1:
                self._step("all can be reached again")
                cluster.heal()
            case _:
                self._servers_come_back()

    def _servers_come_back(self) -> None:
        """Raises PowerLoss and Refused."""
        cluster, self._writing = self.cluster, 0
        for shard in cluster.shards[1:]:
            shard.alive = True
        for worker in cluster.workers:
            if worker.unnoticed is not None:
                cluster.cut(worker)
        try:
            if cluster.coordinator is None:
                self._step("server 0 begins")
                cluster.begin()
            elif cluster.lost:
                self._step("server 0 begins again")
                cluster.let_go()
        except CheckpointError as error:
            # Its supervisor tries again.
            self._step(f"server 0 cannot begin: {error}")
            cluster.shards[0].die()

    # The end

    def _calm(self) -> None:
        """Nothing goes wrong any more. All come back and work on: the job must end in success."""
        cluster = self.cluster
        for _ in range(PATIENCE):
            if isinstance(cluster.storage, Folder):
                cluster.storage.heal()
            if self._stopped():
                break
            cluster.heal()
            self._servers_come_back()
            for worker in cluster.workers:
                self._settle(worker)
            cluster.pass_time(0.4)
        else:
            raise InvariantViolation("the job does not end, though all are here and do what they can")
        self._write_last()

    def _settle(self, worker: Worker) -> None:
        """All that this worker can do now."""
        cluster, loop = self.cluster, self.loop
        if not worker.alive:
            worker.restart()
        if not worker.connected:
            cluster.open(worker)
        for _ in range(MOVES):
            if self._stopped():
                return
            self._catch_up()
            if worker.exchange is not None and not worker.exchange.arrived:
                loop.arrive(worker)
            elif worker.up:
                loop.send(worker)
            elif worker.down:
                loop.receive(worker)
            elif not loop.move(worker):
                return
        raise InvariantViolation(f"{worker.name} does not come to rest")

    def _catch_up(self) -> None:
        cluster = self.cluster
        for shard in cluster.shards:
            if cluster.can_follow(shard):
                cluster.follow(shard)
            if orders := cluster.orders(shard):
                cluster.execute(shard, orders)

    def _write_all(self) -> None:
        """Whatever is to be saved. Raises PowerLoss."""
        cluster = self.cluster
        for _ in range(6):
            for shard in cluster.shards:
                self._writing = shard.server
                while shard.saves:
                    cluster.write_part(shard)
            self._writing = 0
            cluster.write()

    def _write_last(self) -> None:
        """The checkpoint behind the stop is written, whatever was lost before."""
        cluster = self.cluster
        assert cluster.coordinator is not None and cluster.coordinator.state.stopped is not None
        # Orders are still under way to the servers that are left, also to one that was lost before it followed.
        for shard in cluster.shards[1:]:
            shard.alive = True
        cluster.heal()
        self._catch_up()
        if cluster.lost:
            # As the last server, it would begin again: what is not saved is worked on once more.
            return
        self._write_all()
        newest = next(
            (r.index for r in reversed(cluster.log) if isinstance(r.entry, entries.Checkpoint)), None
        )
        if newest is not None and name_of(newest, cluster.name) not in cluster.failed:
            expect(
                cluster.complete == newest,
                f"the disk took all, and the checkpoint of entry {newest} is not complete",
            )
