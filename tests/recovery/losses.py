"""Schedules of a job with replicas: any process dies at any step, stands still or is cut off; then a quiet end.

    python -m tests.recovery --replicas --schedules 1000

Nothing that was told may be undone, whoever leads, unless both copies are lost; then the job goes on from a checkpoint.
"""

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from pslab.verify.invariants import InvariantViolation, expect
from pslab.verify.schedule import ChoiceSource, Seeded
from psserver.service.replicas.logs import holders
from pswire.decisions import entries
from pswire.model.plan import parts_of
from psworker.engine import Abandon, Commit, Request
from tests.recovery.copies import TIMEOUT, Copies, Server
from tests.recovery.extras import NOTHING, Extras, extras_of, intervene
from tests.recovery.holding import Holding
from tests.recovery.loop import Loop
from tests.recovery.promises import check
from tests.recovery.settings import POLICIES, Job, may_have
from tests.recovery.tally import SECOND_OPINION, Played, Tally, tally_of
from tests.recovery.worker import Exchange, Worker

# Rounds without faults after which a job that is not over never will be; of a worker's moves in one of them.
PATIENCE, MOVES = 400, 2000


class Losses(Loop):
    """The training loops of workers that push to whoever leads, and commit with a receipt of both copies."""

    def __init__(self, cluster: Copies) -> None:
        self.copies, self._pick = cluster, cluster.choices.pick
        self._cluster: Any = cluster
        # Tickets whose payload all copies of a part hold; and a worker's push that is under way, with its server's
        # incarnation.
        self.receipts: set[tuple[str, int, int]] = set()
        self.pushing: dict[tuple[str, int], tuple[int, int, int, int]] = {}
        # Workers whose exchange has come to a server.
        self.sent: set[str] = set()

    def send(self, worker: Worker) -> None:
        if self.copies.leader_of(worker) is not None:
            super().send(worker)

    def _receipts(self, worker: Worker, server: Server, ticket: int) -> bool:
        """Whether all copies of all parts hold the payload; if not, push it."""
        logs: list[Holding] = [server]
        for part in range(1, self.copies.parts):
            if not (serving := self.copies.serving(part)):
                return False
            logs.append(serving[self._pick(len(serving))])
        found = [self._receipt(worker, log, ticket) for log in logs]
        return all(found)

    def _receipt(self, worker: Worker, log: Holding, ticket: int) -> bool:
        name, part, process = self.copies.name, log.part, log.process
        if (name, ticket, part) in self.receipts:
            return True
        key = (ticket, log.number, process.incarnation, worker.session)
        if self.pushing.get((worker.name, part)) != key and not log.shard.refuses(ticket):
            self.pushing[worker.name, part] = key
            self.copies.acts(
                process, lambda: log.push(ticket, lambda: self.receipts.add((name, ticket, part)))
            )
        return (name, ticket, part) in self.receipts

    def _work(self, worker: Worker) -> bool:
        engine, ticket = worker.engine, worker.engine.held
        server = self.copies.leader_of(worker)
        assert ticket is not None and worker.member is not None
        if server is None or worker.member[0] != server.shard.job or server.shard.executed <= worker.index:
            return False
        if server.shard.refuses(ticket):
            worker.send(engine.abandon(ticket, "cancelled"))
            return True
        fused = self.copies.parts == 1 and not worker.initialise and self._pick(2) == 1
        if not fused or (worker.name, 0) in self.pushing:
            fused = False
            if not self._receipts(worker, server, ticket):
                return False
        for part in range(self.copies.parts):
            self.pushing.pop((worker.name, part), None)
        commit = Commit(ticket, worker.batch, 8, 0.5, ready=worker.batch + 1 < worker.batches)
        self._begin_commit(worker, Commit(ticket) if worker.initialise else commit, fused=fused)
        self.sent.discard(worker.name)
        return True

    def _send_commit(self, worker: Worker) -> bool:
        self.sent.discard(worker.name)
        return super()._send_commit(worker)

    def arrive(self, worker: Worker) -> None:
        """Its commit comes to the server that leads, behind the payload or behind receipts."""
        exchange, server = worker.exchange, self.copies.leader_of(worker)
        assert exchange is not None
        if server is None or worker.name in self.sent:
            return
        if self.copies.refuses(server, worker.name, exchange.member):
            # It sends the commit again when it has joined again.
            worker.exchange = None
            return
        assert server.coordinator is not None
        ticket = server.coordinator.state.tickets.find(exchange.commit.ticket, worker.name)
        settled = ticket is not None and ticket.state != "open"
        if worker.fused and not settled and server.shard.executed <= worker.index:
            return
        self.sent.add(worker.name)
        if worker.fused and not settled:
            self.commit(server, worker.name, exchange.member, exchange.commit, exchange)
        else:
            self.copies.handle(server, worker.name, exchange.member, exchange.commit, exchange)

    def commit(
        self,
        server: Server,
        name: str,
        member: tuple[str, int],
        commit: Request,
        exchange: Exchange | None = None,
    ) -> None:
        """A payload and its commit arrive together."""
        assert isinstance(commit, Commit)
        self.copies.acts(server, lambda: server.push(commit.ticket))
        if server.alive:
            self.copies.handle(server, name, member, commit, exchange)


class History:
    """One job: trouble for so many steps, then a quiet end. `lost`: both copies were, and there was no checkpoint."""

    def __init__(
        self, job: Job, choices: ChoiceSource, servers: int, *, flips: int = 0, extras: Extras = NOTHING
    ) -> None:
        self.copies = Copies(job, choices, servers, flips=flips, extras=extras)
        self.job, self.loop, self._pick = job, Losses(self.copies), choices.pick
        self.lost = False

    def run(self, steps: int) -> None:
        """Raises InvariantViolation where a promise is broken, or the job does not end."""
        for _ in range(steps):
            if self.copies.over or not self._go_on():
                break
            self._scene()
        if not self.lost:
            self._calm()

    def train(self, version: int) -> None:
        """Let time pass without faults until that version is there."""
        log, self.copies.chaos = self.copies.log, False
        while not any(
            isinstance(each.entry, entries.Apply) and each.entry.version == version for each in log
        ):
            self._round()

    def lose(self, lost: Iterable[int], version: int) -> None:
        """Have these servers die at once behind that version, and no other fault; then a quiet end."""
        self.train(version)
        for number in lost:
            self.copies.kill(self.copies.servers[number])
        self._calm()

    def _fault(self, what: str) -> None:
        self.copies.count_of[what] += 1

    def _go_on(self) -> bool:
        """Go on from a checkpoint if both copies are lost."""
        copies = self.copies
        if not copies.lost():
            return True
        self._fault("both copies lost")
        for server in copies.servers:
            copies.kill(server)
        if not copies.resume():
            self.lost = True
            return False
        self.loop.receipts.clear()
        self.loop.pushing.clear()
        return True

    # Scenes

    def _scene(self) -> None:
        pick, copies = self._pick, self.copies
        worker, server = copies.workers[pick(len(copies.workers))], copies.servers[pick(copies.count)]
        chance = pick(1024)
        if chance < 400:
            for _ in range(1 + pick(3)):
                self._proceed(worker)
        elif chance < 760:
            for _ in range(1 + pick(8)):
                self._deliver()
        elif chance < 880:
            if server.up:
                copies.acts(server, lambda: server.follow(1 + pick(4)))
        elif chance < 960:
            copies.pass_time(0.05 * (1 + pick(3)))
        elif chance < 976:
            if server.up:
                copies.acts(server, server.job_tick)
                copies.notice(server)
        elif chance < 984:
            if server.up and server.leads and not server.deposed:
                copies.acts(server, lambda: intervene(server, copies.extras))
        elif chance < 1000:
            self._disturb(worker)
        else:
            self._break(pick(20), worker, server)

    def _deliver(self) -> None:
        copies = self.copies
        ready = copies.network.ready({each.number for each in copies.servers if each.stalled})
        if ready:
            copies.carry(ready[self._pick(len(ready))])

    def _proceed(self, worker: Worker) -> None:
        copies, way = self.copies, self._pick(3)
        if not worker.alive:
            return
        if not worker.connected:
            leading = [each for each in copies.servers if each.up and each.leads and not each.deposed]
            if leading and worker.reachable:
                copies.open(worker, leading[self._pick(len(leading))])
        elif worker.exchange is not None and not worker.exchange.arrived:
            self.loop.arrive(worker)
        elif worker.up and way == 0:
            self.loop.send(worker)
        elif worker.down and way == 1:
            self.loop.receive(worker)
        else:
            self.loop.move(worker)

    def _disturb(self, worker: Worker) -> None:
        pick, copies = self._pick, self.copies
        match pick(5):
            case 0 if worker.connected:
                self._fault("a worker's connection cut")
                copies.hang_up(worker, told=bool(pick(2)))
            case 1 if worker.exchange is not None:
                self._fault("exchange cut")
                worker.break_exchange()
            case 2 if worker.strays:
                member, request = worker.strays.popleft()
                self._arrives(worker, member, request, "message late")
            case 3 if worker.said:
                member, request = worker.said[pick(len(worker.said))]
                self._arrives(worker, member, request, "message twice")
            case 4 if pick(8) == 7:
                self._fault("a worker's timeout passes")
                for _ in range(8):
                    copies.pass_time(TIMEOUT / 8)
            case _:
                copies.pass_time(0.2)

    def _arrives(self, worker: Worker, member: tuple[str, int], request: Request, how: str) -> None:
        leading = [each for each in self.copies.servers if each.up and each.leads and not each.deposed]
        if not leading:
            return
        server = leading[self._pick(len(leading))]
        if self.copies.refuses(server, worker.name, member):
            return
        self._fault(how)
        if isinstance(request, Commit) and how == "message late":
            self.loop.commit(server, worker.name, member, request)
        elif isinstance(request, Commit | Abandon):
            self.copies.handle(server, worker.name, member, request)

    def _break(self, which: int, worker: Worker, server: Server) -> None:
        pick, copies = self._pick, self.copies
        other = copies.servers[pick(copies.count)]
        match which:
            case 0 | 1 if worker.alive:
                self._fault("worker killed")
                copies.hang_up(worker, told=bool(pick(2)))
                worker.alive = False
            case 2 | 3:
                for each in copies.workers:
                    if not each.alive:
                        each.restart()
                        each.said.clear()
            case 4 | 5 | 6 if server.alive and (copies.copies_left(without=server.number) or pick(8) == 7):
                self._fault(f"kill {self._role(server)}")
                copies.kill(server)
            case 7 | 8 | 9 | 10:
                for lost in copies.servers:
                    if not lost.alive:
                        lost.begin_again()
            case 11 if server.alive:
                self._fault(f"stall {self._role(server)}")
                server.stalled = True
            case 12 | 13:
                for one in copies.servers:
                    one.stalled = one.refuses_promises = False
            case 14 if server is not other:
                self._fault("link cut")
                copies.network.cut(server.number, other.number)
                if pick(2):
                    copies.network.cut(other.number, server.number)
            case 15 | 16:
                copies.network.heal(broken=bool(pick(2)))
            case 17:
                self._fault("clock jumps")
                server.ahead += 0.3 * pick(12)
            case 18:
                self._fault("a disk refuses promises")
                server.refuses_promises = True
            case _:
                copies.notice(server)

    def _role(self, server: Server) -> str:
        replica = server.shell.replica
        if server.leads:
            return "leader"
        return "follower" if replica.in_sync(replica.disk.config) else "another server"

    # The end

    def _calm(self) -> None:
        copies = self.copies
        copies.chaos, copies.flips = False, 0
        for _ in range(PATIENCE):
            copies.network.heal(broken=True)
            for server in copies.servers:
                server.stalled = server.refuses_promises = False
                if not server.alive:
                    server.begin_again()
            if not self._go_on():
                return
            self._round()
            if self._ended():
                break
        else:
            raise InvariantViolation(f"the job does not end, though all are here: {self._state()}")
        self._check()

    def _round(self) -> None:
        copies = self.copies
        copies.pass_time(0.1)
        while copies.network.streams:
            for way in list(copies.network.streams):
                while way in copies.network.streams:
                    copies.carry(way)
        for server in copies.servers:
            if server.alive:
                copies.acts(server, lambda server=server: server.follow(10**6))  # type: ignore[misc]
                if not self.copies.over:
                    copies.notice(server)
                if not self.copies.over or server.notes:
                    copies.acts(server, server.job_tick)
        for worker in copies.workers:
            if not self.copies.over:
                self._settle(worker)

    def _settle(self, worker: Worker) -> None:
        """All that this worker can do before the copies have heard more."""
        copies, loop = self.copies, self.loop
        if not worker.alive:
            worker.restart()
        if not worker.connected:
            leading = [each for each in copies.servers if each.alive and each.leads and not each.deposed]
            if leading:
                copies.open(worker, leading[0])
            return
        if copies.leader_of(worker) is None:
            copies.hang_up(worker, told=False)
            return
        for _ in range(MOVES):
            if copies.leader_of(worker) is None:
                return
            if worker.exchange is not None and not worker.exchange.arrived:
                loop.arrive(worker)
                return
            if worker.up:
                loop.send(worker)
            elif worker.down:
                loop.receive(worker)
            elif not loop.move(worker):
                return
        raise InvariantViolation(f"{worker.name} does not come to rest")

    def _copies(self) -> list[Server]:
        return [each for each in self.copies.servers if each.number < 2]

    def _ended(self) -> bool:
        if not self.copies.over:
            return False
        whole = [each.coordinator is not None for each in self._copies()]
        return all(whole) and all(self._equal(part) for part in range(self.copies.parts))

    def _equal(self, part: int) -> bool:
        """Whether both copies of a part have executed the whole log, and one of them leads."""
        copies = [self.copies.servers[number].log(part) for number in holders(part)]
        led = [each for each in copies if each.leads and not each.held]
        whole = all(each.shard.executed == len(self.copies.log) for each in copies)
        return whole and len(led) == 1 and len(led[0].shell.replica.disk.config.members) == 2

    def _state(self) -> list[Any]:
        return [
            (each.number, each.part, each.leads, each.shard.executed, len(each.held), each.disk.config)
            for server in self.copies.servers
            for each in server.logs
        ]

    def _check(self) -> None:
        copies = self.copies
        first, second = self._copies()
        leader = first if first.leads else second
        assert first.coordinator is not None and second.coordinator is not None
        expect(
            first.coordinator.saved() == second.coordinator.saved(),
            "the copies' coordinators know different things",
        )
        # A bit that flips behind the last version that copies in sync compared is not found.
        unseen = 0 <= copies.compared < copies.flipped or copies.compared < 0 <= copies.flipped
        expect(first.shard.chain == second.shard.chain or unseen, "the copies' weights differ")
        first.shard.chain = second.shard.chain = leader.shard.chain
        expect(
            not copies.rolled_back or copies.generation > 0, "versions were undone while a copy was in sync"
        )
        for part in range(1, copies.parts):
            chains = {copies.servers[number].log(part).shard.chain for number in holders(part)}
            expect(chains == {copies.chains[-1]}, f"copies of part {part} have other weights than the log")
        chains = [leader.shard.chain] if copies.flipped >= 0 else copies.chains
        ended = SimpleNamespace(
            coordinator=leader.coordinator,
            log=copies.log,
            void=copies.void,
            storage=SimpleNamespace(trusted=True),
            shards=[first.shard, second.shard],
            lost=set(),
            chains=chains,
            workers=copies.workers,
        )
        check(ended, second_opinion=self.second_opinion)  # type: ignore[arg-type]

    second_opinion = False


def job_of(seed: int) -> tuple[Job, int, int]:
    """The job of that seed, its number of servers, and of bits that flip: all policies in turn."""
    names, dice = list(POLICIES), random.Random(seed)
    setting = dice.choice(POLICIES[names[seed % len(names)]])
    assert may_have(setting, 1)
    every, servers, flips = dice.randint(1, 4), dice.randint(3, 5), int(dice.random() < 0.2)
    parts = parts_of(servers, 2)
    return Job(setting, parts if may_have(setting, parts) else 1, every, False), servers, flips


def play(seed: int) -> Played:
    """The history of that seed. Raises InvariantViolation."""
    job, servers, flips = job_of(seed)
    extras = extras_of(job.setting, job.servers, seed)
    history = History(job, Seeded(seed), servers, flips=flips, extras=extras)
    history.second_opinion = seed % SECOND_OPINION == 0
    history.run(150 + 7 * seed % 700)
    copies = history.copies
    return {
        "policies": {job.setting.policy: 1},
        "servers": {str(copies.count): 1},
        "parts of the model": {str(copies.parts): 1},
        "faults and what followed": copies.count_of,
        "in all": {
            "versions rolled back, where both copies were lost": copies.rolled_back,
            "both copies lost before any checkpoint": history.lost,
        },
    }


def play_all(seeds: Iterable[int]) -> Tally:
    return tally_of(play, seeds)
