"""A whole job of servers with replicas, on a scheduler that draws everything: who acts, what is lost, who dies.

Each server has a seat in the coordinator's log and in its parts'. A toy coordinator makes an entry of each commit; a
toy part multiplies and adds, so that order matters. Messages are lost, doubled and late in any order, the network is
divided, servers stall, and die at any moment, also between two outputs: what they had not written is gone.
"""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

from psserver.replication import Config, Replica, StableMemory, SyncMember, begin, first_config, restart, take
from psserver.replication.digests import Comparison
from psserver.replication.losing import lost
from psserver.replication.messages import (
    Activate,
    Beat,
    Broke,
    Differs,
    Execute,
    Executed,
    GiveCopy,
    Input,
    Installed,
    Offer,
    Persist,
    Receive,
    Reset,
    Send,
    Stand,
)
from psserver.replication.watch import PeerWatch
from tests.replication.model import Violation

COORDINATOR = -1
PRIME = 2**61 - 1


def _digest(before: bytes, what: object) -> bytes:
    """Return the digest of what is so far, and of one thing more."""
    return hashlib.blake2b(before + str(what).encode(), digest_size=16).digest()


@dataclass
class Job:
    """What a seat has made of its log. `done`: items executed. Of the coordinator `entries`, of a part how many entries
    it has executed, and its weights."""

    done: list[Any] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    weights: int = 1
    hash: bytes = b""

    def copy(self) -> "Job":
        return Job(list(self.done), list(self.entries), self.weights, self.hash)


@dataclass
class Seat:
    """A server's place in one log."""

    replica: Replica
    disk: StableMemory
    watch: PeerWatch
    job: Job = field(default_factory=Job)
    comparison: Comparison = field(default_factory=Comparison)
    # How far it may execute.
    upto: int = 0
    # Who is to be given a copy.
    wanted: int | None = None

    @property
    def log(self) -> list[Any]:
        log = self.replica.log
        return self.job.done[: log.first] + list(log.tail)


@dataclass(frozen=True)
class Mail:
    sender: int
    to: int
    log: int
    content: Any


@dataclass(frozen=True)
class Copy:
    at: int
    job: Job


@dataclass(frozen=True)
class Entries:
    """A coordinator's, from number 0 on; and the digests of versions that a part's follower reports."""

    entries: tuple[int, ...]


@dataclass(frozen=True)
class Digest:
    incarnation: int
    at: int
    digest: bytes


class PowerLoss(Exception):
    pass


class World:
    def __init__(
        self, seed: int, servers: int = 3, tickets: int = 12, *, flip: bool = False, waits: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.servers, self.tickets = servers, tickets
        self.now = 0.0
        parts = tuple((server, server ^ 1) for server in range(servers - servers % 2))
        self.copies = {COORDINATOR: (0, 1), **dict(enumerate(parts))}
        self.seats: dict[tuple[int, int], Seat] = {}
        for log, copies in self.copies.items():
            for server in range(servers):
                replica = begin(server, servers, first_config(copies))
                self.seats[server, log] = Seat(replica, replica.disk, PeerWatch(server, 0.0))
        self.mail: list[Mail] = []
        self.down: set[int] = set()
        self.stalled: set[int] = set()
        self.cut: set[tuple[int, int]] = set()
        self.chaos = True
        # What was promised: items that became stable with their epochs, receipts, fates, weights of versions.
        self.stable: dict[int, list[tuple[Any, int]]] = {log: [] for log in self.copies}
        self.configs: dict[tuple[int, int], Config] = {}
        self.receipts: dict[int, set[int]] = {log: set() for log in self.copies}
        self.fates: set[int] = set()
        self.weights: dict[tuple[int, int], int] = {}
        self.activated: set[tuple[int, int]] = set()
        self.counts: dict[str, int] = {}
        # A seat whose arithmetic goes wrong once.
        self.flip = flip
        # Whether a copy is given only when all that the log has is stable, as servers do.
        self.waits = waits
        self.flipped: tuple[int, int] | None = None

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # One server

    def give(self, server: int, log: int, given: Input) -> None:
        """Give a seat an input and carry out what it answers."""
        seat = self.seats[server, log]
        replica, outputs = take(seat.replica, given)
        # The power may fail before any output but the first.
        fails = len(outputs) if not self.chaos else self.failing(len(outputs))
        if any(isinstance(output, Persist) for output in outputs) and fails < len(outputs):
            for output in outputs[:fails]:
                self.carry_out(server, log, seat, output)
            self.crash(server)
            raise PowerLoss
        seat.replica = replica
        for output in outputs:
            self.carry_out(server, log, seat, output)

    def failing(self, outputs: int) -> int:
        return self.random.randrange(outputs + 1) if self.random.random() < 0.02 else outputs

    def carry_out(self, server: int, log: int, seat: Seat, output: object) -> None:
        match output:
            case Persist(disk):
                self.persisted(seat, log, disk)
            case Send(to, message):
                self.post(Mail(server, to, log, message))
            case Execute(upto):
                self.made_stable(server, log, upto)
                seat.upto = upto
            case Activate(config):
                self.activates(server, log, config)
            case GiveCopy(to):
                seat.wanted = to
                self.copies_out(server, log)
            case Reset():
                self.count("reset")
                self.renew(server, log)

    def copies_out(self, server: int, log: int) -> None:
        """Send the copy that is wanted."""
        seat = self.seats[server, log]
        ready = len(seat.job.done) == seat.replica.log.end or not self.waits
        if seat.wanted is not None and seat.replica.leads and ready:
            self.post(Mail(server, seat.wanted, log, Copy(len(seat.job.done), seat.job.copy())))
            seat.wanted = None

    def broke(self, server: int, log: int, learner: int) -> None:
        seat = self.seats[server, log]
        seat.wanted = None if seat.wanted == learner else seat.wanted
        self.give(server, log, Broke(learner))

    def post(self, mail: Mail) -> None:
        if self.chaos and ((mail.sender, mail.to) in self.cut or self.random.random() < 0.03):
            if isinstance(mail.content, Copy):
                self.later_broke(mail)
            return
        self.mail.append(mail)

    def later_broke(self, mail: Mail) -> None:
        self.mail.append(Mail(mail.to, mail.sender, mail.log, Broke(mail.to)))

    def crash(self, server: int) -> None:
        self.count("crash")
        self.down.add(server)
        for mail in [mail for mail in self.mail if mail.to == server and isinstance(mail.content, Copy)]:
            self.mail.remove(mail)
            self.later_broke(mail)

    def start(self, server: int) -> None:
        self.down.discard(server)
        for log in self.copies:
            self.renew(server, log)

    def renew(self, server: int, log: int) -> None:
        seat = self.seats[server, log]
        old = seat.replica
        replica = restart(server, self.servers, old.incarnation + 1, old.holds, seat.disk)
        self.seats[server, log] = Seat(replica, seat.disk, PeerWatch(server, self.now))

    # What is promised

    def persisted(self, seat: Seat, log: int, disk: StableMemory) -> None:
        if disk.promised < seat.disk.promised:
            raise Violation(f"a promise fell from {seat.disk.promised} to {disk.promised}")
        if self.configs.setdefault((log, disk.config.epoch), disk.config) != disk.config:
            raise Violation(f"two configurations of epoch {disk.config.epoch}")
        seat.disk = disk

    def made_stable(self, server: int, log: int, upto: int) -> None:
        seat, known = self.seats[server, log], self.stable[log]
        have = seat.log
        for number in range(seat.replica.log.first, upto):
            if number < len(known):
                if known[number][0] != have[number]:
                    raise Violation(
                        f"log {log}, item {number}: {have[number]} is stable beside {known[number]}"
                    )
            elif not seat.replica.leads:
                raise Violation(f"log {log}: item {number} became stable without a primary")
            else:
                if have[number] in (item for item, _ in known):
                    raise Violation(f"log {log}: {have[number]} counts twice")
                known.append((have[number], seat.replica.synced))
        if seat.replica.leads:
            for member in seat.replica.disk.config.members:
                other = self.seats[member.server, log]
                if other.replica.member == member and other.log[:upto] != have[:upto]:
                    raise Violation(f"log {log}: {upto} items are stable without {member}")

    def activates(self, server: int, log: int, config: Config) -> None:
        self.count("takeover")
        seat = self.seats[server, log]
        if (log, config.epoch) in self.activated:
            raise Violation(f"log {log}: epoch {config.epoch} began twice")
        self.activated.add((log, config.epoch))
        must = [item for item, epoch in self.stable[log] if epoch < config.epoch]
        if seat.log[: len(must)] != must:
            raise Violation(f"log {log}: epoch {config.epoch} begins without a receipt's item")

    def executes(self, server: int, log: int) -> None:
        """Execute one stable item: stage a payload, or decide about a commit."""
        seat = self.seats[server, log]
        job = seat.job
        if len(job.done) >= seat.upto:
            return
        item = seat.log[len(job.done)]
        if item != self.stable[log][len(job.done)][0]:
            raise Violation(f"log {log}: server {server} executes {item}, which is not stable")
        job.done.append(item)
        if log == COORDINATOR:
            if item in job.entries:
                raise Violation(f"ticket {item} counts twice")
            job.entries.append(item)
            job.hash = _digest(job.hash, item)
            for part in self.copies:
                if part != COORDINATOR and item not in (held for held, _ in self.stable[part]):
                    raise Violation(f"ticket {item} was committed without part {part}")
        self.give(server, log, Executed(len(job.done)))

    def orders(self, server: int, log: int, entries: tuple[int, ...]) -> None:
        """Execute a coordinator's entries as far as their payloads are here."""
        job = self.seats[server, log].job
        while len(job.entries) < len(entries) and entries[len(job.entries)] in job.done:
            item = entries[len(job.entries)]
            if item in job.entries:
                raise Violation(f"part {log}: ticket {item} counts twice")
            job.entries.append(item)
            job.weights = (job.weights * 31 + item + 1) % PRIME
            self.version(server, log)

    def version(self, server: int, log: int) -> None:
        """Compare a new version with the other copy's."""
        seat = self.seats[server, log]
        job, at = seat.job, len(seat.job.entries)
        if self.flip and self.flipped is None and self.random.random() < 0.1:
            job.weights, self.flipped = job.weights ^ 1, (server, log)
        right = self.weights.setdefault((log, at), job.weights)
        if right != job.weights and not self.flip:
            raise Violation(f"part {log}: two values of version {at}")
        self.report(server, log)

    def report(self, server: int, log: int) -> None:
        """Compare the newest version, or send its digest to whoever leads: at once, and with every heartbeat."""
        seat = self.seats[server, log]
        at, digest = len(seat.job.entries), _digest(b"", seat.job.weights)
        if seat.replica.leads:
            self.differ(server, log, seat.comparison.own(at, digest))
        elif seat.watch.primary is not None:
            self.post(Mail(server, seat.watch.primary, log, Digest(seat.replica.incarnation, at, digest)))

    def differ(self, server: int, log: int, differences: list[Any]) -> None:
        for each in differences:
            self.count("difference")
            self.give(server, log, Differs(each.member))
            self.give(server, log, Stand())

    # Events

    def deliver(self, mail: Mail) -> None:
        server, log, content = mail.to, mail.log, mail.content
        seat = self.seats[server, log]
        match content:
            case Entries(entries):
                self.orders(server, log, entries)
            case Copy(at, job):
                if at > seat.replica.log.stable:
                    seat.job, seat.upto = job.copy(), at
                    self.count("copy")
                self.give(server, log, Installed(at))
            case Broke(learner):
                self.broke(server, log, learner)
            case Digest(incarnation, at, digest):
                if seat.replica.leads:
                    found = seat.comparison.theirs(SyncMember(mail.sender, incarnation), at, digest)
                    self.differ(server, log, [found] if found else [])
            case _:
                if seat.watch.withholds(seat.replica, mail.sender, content, self.now):
                    return
                seat.watch.hear(mail.sender, content, self.now, seat.replica.disk.promised)
                self.give(server, log, Receive(mail.sender, content))

    def tick(self, server: int, log: int) -> None:
        seat = self.seats[server, log]
        self.give(server, log, Beat())
        if log != COORDINATOR and server in self.copies[log]:
            self.report(server, log)
        for learner in seat.watch.silent_learners(self.seats[server, log].replica, self.now):
            self.broke(server, log, learner)
        self.copies_out(server, log)
        order = seat.watch.decide(self.seats[server, log].replica, self.now)
        if order is not None:
            self.give(server, log, order)

    def work(self, server: int, log: int, ticket: int) -> None:
        """A worker pushes a payload to a server that leads, or commits; again if there was no answer."""
        seat = self.seats[server, log]
        if not seat.replica.leads:
            return
        if log == COORDINATOR and any(
            ticket not in self.receipts[part] for part in self.copies if part != COORDINATOR
        ):
            return
        if ticket in seat.job.done:
            (self.fates.add if log == COORDINATOR else self.receipts[log].add)(ticket)
        else:
            self.give(server, log, Offer(ticket))

    def tell(self, server: int) -> None:
        """A coordinator that leads, or believes so, sends its entries to a server."""
        if not self.seats[server, COORDINATOR].replica.leads:
            return
        entries = tuple(self.seats[server, COORDINATOR].job.entries)
        to = self.random.randrange(self.servers)
        for log, copies in self.copies.items():
            if log != COORDINATOR and to in copies:
                self.post(Mail(server, to, log, Entries(entries)))

    def able(self) -> list[int]:
        return [each for each in range(self.servers) if each not in self.down and each not in self.stalled]

    def random_step(self) -> None:
        """One event, drawn."""
        draw, chance = self.random.random(), self.random
        able = self.able()
        if draw < 0.55 and self.mail:
            number = chance.randrange(len(self.mail))
            mail = self.mail[number]
            if mail.to in self.down:
                self.mail.pop(number)
            elif mail.to not in self.stalled:
                if chance.random() > 0.05 or isinstance(mail.content, Copy | Broke):
                    self.mail[number] = self.mail[-1]
                    self.mail.pop()
                self.deliver(mail)
        elif draw < 0.97 and able:
            self.act(draw, chance.choice(able), chance.choice(list(self.copies)))
        else:
            self.trouble(draw)

    def act(self, draw: float, server: int, log: int) -> None:
        chance = self.random
        if draw < 0.65:
            self.work(server, log, chance.randrange(self.tickets))
        elif draw < 0.80:
            self.executes(server, log)
        elif draw < 0.86:
            self.tell(server)
        elif draw < 0.965:
            self.now += 0.02
            self.tick(server, log)
        else:
            holds = self.copies[log]
            include = tuple(each for each in holds if each != server and chance.random() < 0.5)
            self.give(server, log, Stand(include if server in holds else ()))

    def trouble(self, draw: float) -> None:
        chance, one = self.random, self.random.randrange(self.servers)
        kind = chance.random()
        if kind < 0.12 and (not self.lost(without=one) or chance.random() < 0.05):
            self.crash(one)
        elif kind < 0.4 and self.down:
            self.start(chance.choice(sorted(self.down)))
        elif kind < 0.5:
            self.stalled = {one}
        elif kind < 0.7:
            self.stalled = set()
        elif kind < 0.8:
            other = chance.randrange(self.servers)
            self.cut |= {(one, other)} if chance.random() < 0.5 else {(one, other), (other, one)}
        else:
            self.cut = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.random_step()
            except PowerLoss:
                continue
            if len(self.mail) > 200:
                # A network forgets.
                kept = [mail for mail in self.mail if isinstance(mail.content, Copy | Broke)]
                self.mail = [*kept, *self.random.sample(self.mail, 100)]

    # The end

    def lost(self, without: int = -1) -> list[int]:
        """Logs of which no copy is in sync any more: two servers died in one epoch, and a checkpoint must help."""
        gone = self.down | {without}
        found = []
        for log in self.copies:
            seats = [self.seats[server, log] for server in range(self.servers)]
            newest = max((seat.disk.config for seat in seats), key=lambda config: config.epoch)
            if not any(seat.replica.in_sync(newest) for seat in seats if seat.replica.server not in gone):
                found.append(log)
        return found

    def heal(self) -> list[int]:
        """Mend everything and let the job end; return the logs that are lost. Raises Violation if it does not end."""
        self.chaos, self.stalled, self.cut = False, set(), set()
        for server in sorted(self.down):
            self.start(server)
        lost = self.lost()
        for number in range(400):
            self.round()
            if lost and number > 40:
                self.check_lost(lost)
                return lost
            if self.ended():
                break
        else:
            raise Violation(f"the job does not end in a quiet network: {self.open()}")
        self.check_lost([])
        self.check_end()
        return lost

    def check_lost(self, expected: list[int]) -> None:
        """What is on the disks names the logs that are lost, once all servers are there."""
        found = []
        for log in self.copies:
            seats = [self.seats[server, log] for server in range(self.servers)]
            if lost([seat.replica.incarnation for seat in seats], [seat.disk for seat in seats]):
                found.append(log)
        if found != expected:
            raise Violation(f"logs {expected} are lost, and the disks say {found}")

    def round(self) -> None:
        self.now += 0.1
        for server, log in self.seats:
            self.tick(server, log)
        while self.mail:
            mail, self.mail = self.mail, []
            for each in mail:
                self.deliver(each)
        for server, log in self.seats:
            for _ in range(self.tickets):
                self.executes(server, log)
            for ticket in range(self.tickets):
                self.work(server, log, ticket)
            entries = tuple(self.seats[server, COORDINATOR].job.entries)
            if log == COORDINATOR and self.seats[server, log].replica.leads:
                for to, part in self.seats:
                    if part != COORDINATOR and to in self.copies[part]:
                        self.deliver(Mail(server, to, part, Entries(entries)))

    def open(self) -> list[Any]:
        """What is not as it should be in the end."""
        found: list[Any] = [ticket for ticket in range(self.tickets) if ticket not in self.fates]
        for log, copies in self.copies.items():
            led = [server for server in copies if self.seats[server, log].replica.leads]
            full = all(len(self.seats[server, log].job.entries) == self.tickets for server in copies)
            members = [len(self.seats[server, log].replica.disk.config.members) for server in led]
            equal = len({self.seats[server, log].job.weights for server in copies}) == 1
            if members != [len(copies)] or not (full and equal):
                found.append((log, led, members, full))
        return found

    def ended(self) -> bool:
        return not self.open()

    def check_end(self) -> None:
        """All copies are equal, and every ticket counts once."""
        for log, copies in self.copies.items():
            first, second = (self.seats[server, log].job for server in copies)
            if sorted(first.entries) != list(range(self.tickets)) or first.entries != second.entries:
                raise Violation(f"log {log} ends with {first.entries} and {second.entries}")
            if first.weights != second.weights or first.hash != second.hash:
                raise Violation(f"log {log}: the copies differ")


def play(seed: int, steps: int, servers: int = 3, *, flip: bool = False, waits: bool = False) -> World:
    """One history: trouble for so many steps, then a quiet end."""
    world = World(seed, servers, flip=flip, waits=waits)
    world.run(steps)
    if world.heal():
        world.count("lost")
    return world
